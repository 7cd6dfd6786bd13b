"""The whole evaluation on a small dataset: document, files, report, last line."""

import csv
import json
from html.parser import HTMLParser

import pytest

from ricci_gpu.config import Config
from ricci_gpu.evaluation.datasets import Dataset
from ricci_gpu.evaluation.results import TABLES, summary, write_results
from ricci_gpu.evaluation.run import Evaluation, Sizes
from ricci_gpu.evaluation.trained import PairModel

VOID = {"meta", "line", "path", "rect", "circle"}


class Page(HTMLParser):
    """Checks that elements close in order; collects text, and what would be loaded."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.loads, self.seen = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def document(data, words, tmp_path):
    def overlap(pairs):
        return [float(len(set(a.split()) & set(b.split()))) for a, b in pairs]

    evaluation = Evaluation(
        Config.load("default", ["retrieve.k=12"]),
        words,
        words,
        tmp_path / "cache",
        Sizes(12, 16, 24, pool_sizes=(8, 12), ablated=6, impossible=5, timed=4),
        pair_models=[PairModel("overlap", overlap), PairModel("a few", overlap, sample=5)],
        absent=["a model that is not there"],
    )
    return evaluation.run([Dataset("small", data / "small", queries=16)])


def check_the_document_and_its_files(document, tmp_path):
    facts = document["facts"]
    assert facts["pool"] == 12
    assert facts["seed"] == 0
    assert facts["encoder"] == "words (a test)"
    assert facts["rerankers"] == ["MaxSim", "overlap", "a few"]
    assert {"torch", "python", "numpy"} <= set(facts["conditions"]["versions"])

    paths = write_results(document, tmp_path / "out", "quality")
    assert json.loads(paths[0].read_text()) == json.loads(json.dumps(document))
    for name in TABLES:
        path = tmp_path / "out" / f"quality_{name}.csv"
        assert path.exists() == bool(document[name])
        if document[name]:
            rows = list(csv.DictReader(path.read_text().splitlines()))
            assert len(rows) == len(document[name])
            assert list(rows[0]) == list(document[name][0])

    sampled = [row for row in document["protocol"] if row["queries"] == 5]
    whole = [row for row in document["protocol"] if row["queries"] == 16]
    assert any(row["system"] == "a few" for row in sampled)
    assert not any("a few" in row["system"] for row in whole)
    plain = next(row for row in whole if row["system"] == "no reranker")
    assert plain["kept"] == 12
    assert plain["ndcg_full"] == plain["ndcg_survivors"]
    ladder = {row["step"]: row["ndcg10"] for row in document["ladder"]}
    assert ladder["overlap"] > ladder["dense"]


def check_the_report_shows_the_figures(document, tmp_path):
    page = Page()
    page.feed((tmp_path / "out" / "quality.html").read_text())
    page.close()
    assert page.open == []
    assert page.loads == []
    assert "script" not in page.seen
    assert page.seen.count("svg") >= 5
    text = " ".join(page.text)
    for row in document["verdicts"]:
        assert row["control"] in text
        assert f"{100 * row['default']:.1f}" in text
    for row in document["null_queries"]:
        assert f"{row['auc']:.3f} [{row['auc_low']:.3f}, {row['auc_high']:.3f}]" in text
    for row in document["ladder"]:
        assert f"{row['ndcg10']:.4f}" in text
    for row in document["protocol"]:
        assert f"{row['ndcg_survivors']:.4f}" in text
    assert "a model that is not there" in text


def check_the_last_line_has_the_promised_shape(document):
    line = json.loads(json.dumps(summary(document), allow_nan=False))
    assert list(line) == ["bench", "datasets", "matched_budget", "null_auc"]
    assert line["bench"] == "quality"
    small = line["datasets"]["small"]
    assert set(small) == {"dense_ndcg10", "best_ndcg10", "ladder"}
    assert small["dense_ndcg10"] == small["ladder"]["dense"]["ndcg10"]
    assert small["best_ndcg10"] == list(small["ladder"].values())[-1]["ndcg10"]
    assert list(line["matched_budget"]["small"]) == ["2", "3", "5", "8"]
    three = line["matched_budget"]["small"]["3"]
    assert set(three) == {"default", "best_control", "control", "delta", "ci95"}
    assert three["delta"] == pytest.approx(three["default"] - three["best_control"])
    assert three["ci95"][0] <= three["delta"] <= three["ci95"][1]
    assert {"default", "max_cosine", "maxsim_contrast"} <= set(line["null_auc"]["small"])


def test_everything_made_from_one_evaluation(document, tmp_path):
    check_the_document_and_its_files(document, tmp_path)
    check_the_report_shows_the_figures(document, tmp_path)
    check_the_last_line_has_the_promised_shape(document)
