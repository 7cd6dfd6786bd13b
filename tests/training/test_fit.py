"""The machinery around any ranker: resuming, stopping early, the curve, refusals."""

import csv
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from ricci_gpu.errors import InputError, MissingDependencyError
from ricci_gpu.training.fit import fit
from ricci_gpu.training.losses import listwise_loss
from ricci_gpu.training.settings import RunSettings

pytest.importorskip("lightning")
pytest.importorskip("ir_measures")

SETTINGS = RunSettings(data=("none",), epochs=4, patience=4, learning_rate=0.05, accelerator="cpu")


class Batch(NamedTuple):
    features: torch.Tensor
    relevant: torch.Tensor


class Batches(Dataset):
    """Passages are vectors; the relevant one has the largest first number."""

    def __init__(self, seed, size=3, fails_at=None):
        random = torch.Generator().manual_seed(seed)
        self.features = torch.randn(size, 5, 6, 8, generator=random)
        self.fails_at = fails_at

    def __len__(self):
        return len(self.features)

    def __getitem__(self, place):
        if place == self.fails_at:
            raise ConnectionError("the machine went away")
        features = self.features[place]
        best = features[..., 0].argmax(dim=1)
        return Batch(features, torch.nn.functional.one_hot(best, 6).bool())


class Linear(nn.Module):
    """Scores by a linear map, after dropout: a step depends on the state of the generator."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 1, bias=False)
        nn.init.ones_(self.linear.weight)

    def forward(self, batch):
        return self.linear(nn.functional.dropout(batch.features, 0.2, self.training))[..., 0]

    def loss(self, scores, relevant):
        return listwise_loss(scores, relevant)

    def parameter_groups(self, learning_rate):
        return [{"params": list(self.parameters()), "lr": learning_rate}]


def run(folder, settings=SETTINGS, train=Batches, resume=False):
    ranker = Linear()
    fitted = fit(ranker, train, Batches(99, size=2), settings, folder, resume)
    return ranker.linear.weight.detach(), fitted


def test_a_killed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path):
    expected, whole = run(tmp_path / "whole")

    def dies(epoch):
        return Batches(epoch, fails_at=1 if epoch == 2 else None)

    with pytest.raises(ConnectionError):
        run(tmp_path / "killed", train=dies)
    weight, resumed = run(tmp_path / "killed", resume=True)
    assert torch.equal(weight, expected)
    assert resumed == whole
    assert [point.epoch for point in resumed.curve] == [1, 2, 3, 4]
    last = [
        torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for name in ("whole", "killed")
    ]
    assert torch.equal(last[0]["ranker.linear.weight"], last[1]["ranker.linear.weight"])


def test_a_finished_run_is_not_trained_further(tmp_path):
    weight, fitted = run(tmp_path)

    def never(epoch):
        raise AssertionError("read again")

    again, same = run(tmp_path, train=never, resume=True)
    assert torch.equal(weight, again)
    assert same == fitted


def test_equal_seeds_give_equal_weights_and_others_do_not(tmp_path):
    first, _ = run(tmp_path / "a")
    second, _ = run(tmp_path / "b")
    third, _ = run(tmp_path / "c", replace(SETTINGS, seed=1))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_it_learns_and_keeps_the_best_epoch(tmp_path):
    weight, fitted = run(tmp_path, replace(SETTINGS, epochs=6, learning_rate=0.2))
    assert fitted.best.dev_ndcg == max(point.dev_ndcg for point in fitted.curve)
    assert fitted.best.dev_ndcg > 0.8
    assert weight[0, 0] > weight[0, 1:].abs().max()
    assert fitted.first_process


def test_it_stops_when_the_dev_part_gets_no_better(tmp_path):
    settings = replace(SETTINGS, epochs=30, patience=2, learning_rate=1e-9)
    _, fitted = run(tmp_path, settings)
    assert [point.epoch for point in fitted.curve] == [1, 2, 3]
    assert fitted.best.epoch == 1


def test_the_curve_is_kept_as_rows_and_as_a_picture(tmp_path):
    _, fitted = run(tmp_path)
    with (tmp_path / "curve.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["dev_ndcg"]) for row in rows] == [p.dev_ndcg for p in fitted.curve]
    picture = ET.parse(tmp_path / "curve.svg").getroot()
    paths = picture.findall(".//{http://www.w3.org/2000/svg}path")
    assert len(paths) == 3
    assert all(path.get("d").count("L") == 3 for path in paths)


def test_two_runs_do_not_mix(tmp_path):
    with pytest.raises(InputError, match=r"nothing to resume: there is no checkpoints/last\.ckpt"):
        run(tmp_path, resume=True)
    run(tmp_path, replace(SETTINGS, epochs=1))
    with pytest.raises(InputError, match=r"holds a run already\. Go on with --resume, or choose"):
        run(tmp_path)
    with pytest.raises(InputError, match=r"`seed` was 0\. Give the same settings, or start anew"):
        run(tmp_path, replace(SETTINGS, epochs=1, seed=3), resume=True)


def test_without_lightning_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(MissingDependencyError, match=r"training needs .*ricci-gpu\[train\]"):
        run(tmp_path)
