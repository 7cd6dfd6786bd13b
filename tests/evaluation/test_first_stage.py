import warnings
import zlib

import numpy as np
import pytest
import torch

from ricci_gpu.evaluation.first_stage import (
    Bm25,
    SpladeStage,
    best,
    listed,
    reciprocal_ranks,
    z_fusion,
)

INF = float("inf")


def test_reciprocal_ranks_by_hand():
    score = torch.tensor([[0.1, 0.9, 0.5]])
    assert reciprocal_ranks(score, depth=2)[0].tolist() == pytest.approx([0, 1 / 61, 1 / 62])


def test_z_fusion_standardises_over_the_union():
    a = torch.tensor([[3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([[0.0, 0.0, 5.0, 1.0]], dtype=torch.float64)
    assert listed(a, 1).tolist() == [[True, False, False, False]]
    fused = z_fusion([(1.0, a), (2.0, b)], depth=1)
    # the union holds passages 0 and 2: z-scores +1, -1 and -1, +1
    assert fused.tolist() == [[1.0 - 2.0, -INF, -1.0 + 2.0, -INF]]


def test_best_breaks_ties_by_the_lower_row():
    scores, rows = best(torch.tensor([[1.0, 3.0, 1.0, 3.0]]), 3)
    assert rows.tolist() == [[1, 3, 0]]
    assert scores.tolist() == [[3.0, 3.0, 1.0]]


def test_bm25_by_hand(store):
    """One rare word in one passage: idf * tf / (tf + k1 (1 - b + b length / mean length))."""
    [row] = Bm25(store).scores(["fact3x1"])
    [at] = np.flatnonzero(row.numpy())
    assert store.passages[at].id == "p3-1"
    passages, length = len(store.passages), 8  # all passages have eight words
    idf = np.log(1 + (passages - 1 + 0.5) / (1 + 0.5))
    assert float(row[at]) == pytest.approx(
        idf * 1 / (1 + 1.2 * (0.25 + 0.75 * length / length)), rel=1e-4
    )


def test_splade_is_encoded_once_and_scores_by_inner_products(store, tmp_path):
    class Counts:
        """The weight of a word is how often it comes."""

        name, vocabulary, fingerprint = "counts", 500, "counts-1"
        calls = 0

        def encode(self, texts, **options):
            Counts.calls += 1
            dense = torch.zeros(len(texts), 500)
            for row, text in enumerate(texts):
                for word in text.split():
                    dense[row, zlib.crc32(word.encode()) % 500] += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return dense.to_sparse_csr()

    model = Counts()
    stage = SpladeStage(model, store, tmp_path)
    assert stage.name == "SPLADE counts"
    texts = ["topic3 fact3x1", "word1 word1"]
    scores = stage.scores(texts)
    passages = model.encode([passage.full_text for passage in store.passages]).to_dense()
    assert torch.allclose(scores, model.encode(texts).to_dense() @ passages.mT)
    calls = Counts.calls
    again = SpladeStage(model, store, tmp_path)
    assert Counts.calls == calls
    assert torch.equal(again.scores(texts), scores)
