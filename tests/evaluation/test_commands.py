import json
from dataclasses import replace

import pytest

import ricci_gpu.evaluation.run
import ricci_gpu.models.cross_encoder
import ricci_gpu.models.late_interaction
import ricci_gpu.models.splade
import ricci_gpu.reranker
from ricci_gpu.cli import main
from ricci_gpu.config import Config
from ricci_gpu.errors import SettingError


@pytest.fixture
def no_models(monkeypatch, words):
    """A reranker of the word encoder; every other model is nowhere."""

    class Stub:
        def __init__(self, preset, overrides):
            self.config = Config.load(preset, overrides)
            self.encoder = self.query_encoder = self.passage_encoder = words

    def nowhere(name, **options):
        raise SettingError(f"`{name}` is nowhere")

    monkeypatch.setattr(ricci_gpu.reranker, "Reranker", Stub)
    for model in (
        ricci_gpu.models.late_interaction.LateInteraction,
        ricci_gpu.models.cross_encoder.CrossEncoder,
        ricci_gpu.models.splade.Splade,
    ):
        monkeypatch.setattr(model, "load", staticmethod(nowhere))


def test_eval_writes_its_files_and_ends_with_one_object(
    no_models, data, tmp_path, capsys, monkeypatch
):
    sizes = ricci_gpu.evaluation.run.Sizes
    monkeypatch.setattr(
        ricci_gpu.evaluation.run,
        "Sizes",
        lambda **given: replace(
            sizes(**given), pool=12, second_pool=12, ablated=2, timed=2, pool_sizes=(12,)
        ),
    )
    out = tmp_path / "out"
    given = ["--data", str(data), "--cache", str(tmp_path / "cache"), "--out", str(out), "--short"]
    given += ["--set", "retrieve.k=12"]
    assert main(["eval", *given, "--seed", "3"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert str(out / "quality.json") in lines
    assert str(out / "quality.html") in lines
    assert json.loads(lines[-1])["bench"] == "quality"
    document = json.loads((out / "quality.json").read_text())
    assert document["facts"]["seed"] == 3
    absent = " ".join(document["absent"])
    for missing in ("head minilm-128", "SPLADE splade-tiny", "cross-encoder", "--llm", "--answers"):
        assert missing in absent
        assert missing in printed.err
    assert "`minilm-128` is nowhere" in printed.err
    assert "is nowhere" not in absent


def test_no_data_is_an_error_that_says_what_to_do(no_models, tmp_path, capsys):
    assert main(["eval", "--data", str(tmp_path / "nothing")]) == 1
    assert "holds no BEIR folder" in capsys.readouterr().err


def test_a_dataset_without_a_part_is_refused(no_models, data, tmp_path, capsys):
    path = data / "small" / "queries.jsonl"
    path.write_text(path.read_text().replace('"split": "test"', '"split": "train"'))
    given = ["--data", str(data), "--cache", str(tmp_path / "cache"), "--out", str(tmp_path)]
    assert main(["eval", *given]) == 1
    assert "dataset `small` needs judged queries to choose" in capsys.readouterr().err
