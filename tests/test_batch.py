import math
from dataclasses import FrozenInstanceError

import pytest
import torch

from ricci_gpu.batch import Reason, Status, bucket_size, pad_pools
from ricci_gpu.errors import InputError


@pytest.mark.parametrize(
    ("candidates", "nodes"),
    [
        *((0, 16), (1, 16), (15, 16), (16, 32), (31, 32), (32, 64), (63, 64), (64, 128)),
        *((127, 128), (128, 256), (255, 256), (256, 384), (2000, 2048)),
    ],
)
def test_bucket_sizes(candidates, nodes):
    assert bucket_size(candidates) == nodes
    assert nodes >= candidates + 1


def test_masks_statuses_and_padding():
    batch = pad_pools(
        [3, 0, 1, 2],
        prior=[torch.tensor([3.0, 2, 1]), torch.tensor([]), torch.ones(1), torch.ones(2)],
        query_emb=torch.ones(4, 5),
        candidate_emb=[torch.full((n, 5), 2.0) for n in (3, 0, 1, 2)],
        nodes=16,
    )
    assert batch.node_mask.sum(dim=1).tolist() == [4, 1, 2, 3]
    assert batch.node_mask[:, 0].all()
    assert torch.equal(batch.keep, batch.candidate_mask)
    assert batch.keep.shape == batch.prior.shape == batch.reason.shape == (4, 15)
    assert batch.node_emb.shape == (4, 16, 5)
    assert (batch.node_emb[0, :4, 0]).tolist() == [1, 2, 2, 2]
    assert batch.status.tolist() == [
        *(Status.OK, Status.TOO_FEW_NODES, Status.TOO_FEW_NODES, Status.OK)
    ]
    assert (batch.reason[batch.keep] == Reason.KEPT).all()
    assert (batch.reason[~batch.keep] == Reason.PADDING).all()
    assert (batch.score[~batch.keep] == -torch.inf).all()
    assert batch.score[0, :3].tolist() == [3, 2, 1]
    assert torch.isnan(batch.abstention).all()


def test_without_scores_the_given_order_stands():
    batch = pad_pools([2, 3])
    assert (batch.score[1].diff() < 0).all()
    assert batch.node_emb is None
    assert batch.keep.shape == (2, 3)


def test_no_queries_and_no_candidates():
    assert pad_pools([]).keep.shape == (0, 0)
    assert pad_pools([0, 0]).keep.shape == (2, 0)


def test_batches_are_frozen_and_copied_with_changes():
    batch = pad_pools([2])
    with pytest.raises(FrozenInstanceError):
        batch.keep = batch.keep
    changed = batch.with_(keep=torch.zeros_like(batch.keep))
    assert batch.keep.all()
    assert not changed.keep.any()
    assert changed.device == torch.device("cpu")


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 3}, r"`nodes` must be at least 4 \(largest pool \+ query\); got 3"),
        ({"query_emb": torch.ones(2, 4)}, r"give both `query_emb` and `candidate_emb`, or neither"),
        (
            {"candidate_emb": [torch.ones(2, 4)] * 2},
            r"give both `query_emb` and `candidate_emb`, or neither",
        ),
        (
            {"prior": [torch.ones(2), torch.ones(2)]},
            r"query 1: 3 candidates but 2 prior scores",
        ),
        (
            {"prior": [torch.ones(2)]},
            r"`prior` must have one entry per query; got 1 for 2 queries",
        ),
        (
            {"query_emb": torch.ones(1, 4), "candidate_emb": [torch.ones(2, 4)] * 2},
            r"`query_emb` must have one entry per query; got 1 for 2 queries",
        ),
        (
            {"query_emb": torch.ones(2, 4), "candidate_emb": [torch.ones(2, 4)] * 3},
            r"`candidate_emb` must have one entry per query; got 3 for 2 queries",
        ),
        (
            {"query_emb": torch.ones(2, 4), "candidate_emb": [torch.ones(2, 4)] * 2},
            r"query 1: candidate vectors must have shape \(3, 4\); got \(2, 4\)",
        ),
        (
            {"query_emb": torch.ones(2, 4), "candidate_emb": [torch.ones(2, 5), torch.ones(3, 4)]},
            r"query 0: candidate vectors must have shape \(2, 4\); got \(2, 5\)",
        ),
    ],
)
def test_lengths_that_do_not_fit_together(arguments, message):
    with pytest.raises(InputError, match=message):
        pad_pools([2, 3], **arguments)


def test_priors_of_any_precision():
    batch = pad_pools([2], prior=[torch.tensor([0.5, math.nan], dtype=torch.float64)])
    assert batch.prior.dtype == torch.float32
    assert batch.prior[0, 0] == 0.5
