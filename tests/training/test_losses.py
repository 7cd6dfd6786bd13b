import math

import pytest
import torch

from ricci_gpu.training.losses import listwise_loss, pointwise_loss

INF = math.inf


def test_listwise_is_the_softmax_cross_entropy():
    torch.manual_seed(0)
    scores = torch.randn(5, 7, dtype=torch.float64)
    relevant = torch.nn.functional.one_hot(torch.arange(5), 7).bool()
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(5))
    assert listwise_loss(scores, relevant) == pytest.approx(expected.item())


def test_listwise_by_hand_with_two_relevant_and_an_empty_place():
    scores = torch.tensor([[math.log(3), math.log(1), math.log(4), -INF]])
    relevant = torch.tensor([[True, True, False, False]])
    assert listwise_loss(scores, relevant).item() == pytest.approx(-math.log(4 / 8))


def test_questions_without_a_relevant_passage_do_not_count():
    scores = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    relevant = torch.tensor([[False, False], [True, False]])
    assert listwise_loss(scores, relevant).item() == pytest.approx(math.log(2))
    assert listwise_loss(scores, torch.zeros_like(relevant)).item() == 0
    lost = torch.tensor([[-INF, 1.0]])  # a relevant passage without a token
    assert listwise_loss(lost, torch.tensor([[True, False]])).item() == 0


def test_pointwise_by_hand():
    scores = torch.tensor([[0.0, -INF], [2.0, -1.0]])
    relevant = torch.tensor([[True, False], [False, False]])
    expected = (math.log(2) + math.log1p(math.exp(2)) + math.log1p(math.exp(-1))) / 3
    assert pointwise_loss(scores, relevant).item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [listwise_loss, pointwise_loss])
def test_empty_places_have_no_gradient(loss):
    scores = torch.tensor([[1.0, -INF, 0.5], [-INF, 0.0, 3.0]], requires_grad=True)
    relevant = torch.tensor([[True, False, False], [False, False, False]])
    loss(scores, relevant).backward()
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[0, 1] == scores.grad[1, 0] == 0
    assert scores.grad[0, 0] != 0
