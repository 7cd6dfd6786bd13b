import pytest
import torch
from torch.nn.functional import normalize

from ricci_gpu.errors import SettingError
from ricci_gpu.training.draws import Batch, Draw
from ricci_gpu.training.late_interaction import (
    LateInteractionRanker,
    Packed,
    TokenBatch,
    TokenBatches,
    TokenIds,
    pool_maxsim,
    principal_directions,
    take,
)


def packed(*counts, width=6, seed=0):
    random = torch.Generator().manual_seed(seed)
    vectors = normalize(torch.randn(sum(counts), width, generator=random), dim=-1)
    return Packed(vectors, torch.tensor([0, *counts]).cumsum(0))


class Rows:
    """Texts of one token each: the first number of the vector is the row."""

    def questions(self, collection, rows):
        return self.passages(collection, rows)

    def passages(self, collection, rows):
        return Packed(torch.tensor(rows)[:, None].float(), torch.arange(len(rows) + 1))


def documents(batch):
    """The rows that each question is scored against."""
    rows = batch.documents.vectors[:, 0].long().tolist()
    return [[rows[place] for place in row if place >= 0] for row in batch.document_of.tolist()]


def test_in_batch_negatives_leave_out_what_is_relevant():
    draws = (
        Draw(0, (10, 11), frozenset({10, 20})),
        Draw(1, (20, 21), frozenset({20})),
        Draw(2, (30, 10), frozenset({30})),
    )
    batch = TokenBatches([Batch(0, draws)], Rows(), in_batch=True)[0]
    assert documents(batch) == [[10, 11, 30], [20, 21, 10, 30], [30, 10, 20]]
    assert batch.relevant.tolist() == [[True, False, False, False]] * 3
    assert batch.document_of[0, 3] == -1
    assert batch.queries.vectors[:, 0].tolist() == [0, 1, 2]


def test_pools_stay_as_they_are():
    draws = (Draw(0, (3, 1, 2), frozenset({2, 9})), Draw(1, (1, 4, 5), frozenset({7})))
    batch = TokenBatches([Batch(0, draws)], Rows(), in_batch=False)[0]
    assert documents(batch) == [[3, 1, 2], [1, 4, 5]]
    assert batch.relevant.tolist() == [[False, False, True], [False, False, False]]


def test_scores_and_gradients_equal_a_dense_computation():
    queries, passages = packed(3, 2), packed(4, 0, 5, 1, seed=1)
    places = torch.tensor([[0, 2, -1], [3, 1, 0]])
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))
    ranker = LateInteractionRanker(weight, temperature=0.7)
    scores = ranker(TokenBatch(queries, passages, places, places == 0))
    dense = weight.clone().requires_grad_()

    def score(q, d):
        left = queries.vectors[queries.offsets[q] : queries.offsets[q + 1]]
        right = passages.vectors[passages.offsets[d] : passages.offsets[d + 1]]
        products = normalize(left @ dense.mT, dim=-1) @ normalize(right @ dense.mT, dim=-1).mT
        return products.amax(dim=1).sum()

    expected = torch.stack([score(0, 0), score(0, 2), score(1, 3), score(1, 0)])
    found = scores[torch.isfinite(scores)]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert scores[0, 2] == scores[1, 1] == -torch.inf  # no document, an empty one
    factors = torch.tensor([1.0, -2.0, 3.0, 0.5])
    (found * factors).sum().backward()
    (expected * factors).sum().backward()
    torch.testing.assert_close(ranker.linear.weight.grad, dense.grad, rtol=0, atol=1e-5)


def test_the_loss_divides_by_the_temperature():
    ranker = LateInteractionRanker(torch.eye(6), temperature=0.5)
    scores, relevant = torch.tensor([[1.0, 0.0]]), torch.tensor([[True, False]])
    assert ranker.loss(scores, relevant).item() == pytest.approx(0.126928, abs=1e-5)  # log(1+e^-2)


def test_a_trained_encoder_learns_more_slowly_and_padding_has_no_vectors():
    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(9, 6)

        def forward(self, input_ids, attention_mask):
            hidden = self.table(input_ids).masked_fill(attention_mask[..., None] == 0, torch.nan)
            return type("Output", (), {"last_hidden_state": hidden})

    encoder = Hidden()
    ranker = LateInteractionRanker(torch.eye(6), 1.0, encoder)
    texts = TokenIds(torch.tensor([[1, 2, 0], [3, 4, 5]]), torch.tensor([[1, 1, 0], [1, 1, 1]]) > 0)
    vectors, offsets = ranker.project(texts)
    assert offsets.tolist() == [0, 2, 5]
    expected = normalize(encoder.table.weight[1:6], dim=-1)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-6)
    rates = [group["lr"] for group in ranker.parameter_groups(1e-3)]
    assert rates == [1e-3, pytest.approx(2e-5)]
    scores = pool_maxsim(*ranker_sides(ranker, texts), torch.tensor([[1], [0]]))
    scores.sum().backward()
    assert torch.isfinite(encoder.table.weight.grad).all()
    assert encoder.table.weight.grad[1:6].abs().sum() > 0


def ranker_sides(ranker, texts):
    return ranker.project(texts), ranker.project(texts)


def test_take_keeps_texts_whole_and_in_order():
    texts = packed(2, 0, 3)
    found = take(texts, [2, 1, 0])
    assert found.offsets.tolist() == [0, 3, 3, 5]
    assert torch.equal(found.vectors, texts.vectors[[2, 3, 4, 0, 1]])


def test_principal_directions_keep_dot_products_of_vectors_in_their_span():
    random = torch.Generator().manual_seed(0)
    tokens = torch.randn(300, 3, generator=random) @ torch.randn(3, 8, generator=random)
    weight = principal_directions([tokens[:200].numpy(), tokens[200:].numpy()], 3)
    torch.testing.assert_close(weight @ weight.mT, torch.eye(3), rtol=0, atol=1e-5)
    projected = tokens @ weight.mT
    torch.testing.assert_close(projected @ projected.mT, tokens @ tokens.mT, rtol=0, atol=1e-3)
    with pytest.raises(SettingError, match=r"`width` must be at most 8, .* got 9\. Lower it"):
        principal_directions([tokens.numpy()], 9)
