from dataclasses import replace

import pytest
import torch

from ricci_gpu.batch import Reason
from ricci_gpu.errors import SettingError
from ricci_gpu.ops.maxsim import maxsim_from_maxima, pool_maxima
from ricci_gpu.stages import FILTERS


@pytest.fixture(scope="module")
def pool(random_pool):
    return replace(random_pool(0, 6), prior=torch.tensor([0.9, 0.85, 0.8, 0.3, 0.25, 0.2]))


@pytest.mark.parametrize(
    ("name", "settings", "kept"),
    [
        ("none", {}, 6),
        ("fixed_k", {"k": 2}, 2),
        ("fixed_k", {"k": 50}, 6),
        ("fraction", {"share": 0.3}, 2),
        ("threshold", {"at_least": 0.8}, 3),
        ("threshold", {"at_least": 2}, 0),
        ("z_score", {}, 3),
        ("z_score", {"at_least": 0.9}, 2),
        ("largest_gap", {}, 3),
        ("autocut", {}, 3),
        ("ratio", {}, 2),
        ("ratio", {"share": 0.3}, 4),
        ("knee", {}, 3),
        ("otsu", {}, 3),
        ("random", {"k": 4}, 4),
        ("degree", {"k": 1}, 1),
    ],
)
def test_numbers_kept_of_a_plain_list(name, settings, kept, pool, answer_of):
    filter_ = FILTERS.build(name, settings)
    answer = answer_of(filter_, pool)
    assert sum(answer.keep) == kept
    if name not in ("random", "degree"):
        assert answer.keep == [True] * kept + [False] * (6 - kept)
    dropped = {reason for reason, keep in zip(answer.reason, answer.keep, strict=True) if not keep}
    budget = name in ("fixed_k", "fraction", "random", "degree")
    assert dropped <= {Reason.OUTSIDE_BUDGET if budget else Reason.LOW_SCORE}
    assert torch.equal(answer.score, pool.prior)  # the order is left alone


def test_scores_of_maxsim_instead_of_the_retrieval(random_pool, batch_of):
    batch = batch_of([random_pool(1, 6), random_pool(2, 4)], poison=False)
    filter_ = FILTERS.build("fixed_k", {"k": 2, "on": "maxsim"})
    result = filter_(batch)
    score = maxsim_from_maxima(pool_maxima(batch.tokens), torch.ones(2, 4, dtype=torch.bool))
    real = batch.candidate_mask
    assert torch.equal(result.filter_value[real], score[real])
    best = torch.where(real, score, -torch.inf).topk(2, dim=1).indices
    assert result.keep.gather(1, best).all()
    assert int(result.keep.sum()) == 4
    assert filter_.needs() == {"tokens"}
    assert FILTERS.build("fixed_k", {}).needs() == set()


def test_empty_documents_come_last_under_maxsim(random_pool, answer_of):
    pool = random_pool(1, 5)
    documents = [pool.documents[0][:0], *pool.documents[1:]]
    for name, settings in [("threshold", {"at_least": -100}), ("fixed_k", {"k": 4})]:
        filter_ = FILTERS.build(name, {"on": "maxsim", **settings})
        answer = answer_of(filter_, replace(pool, documents=documents))
        assert answer.keep == [False, True, True, True, True]


def test_lots_depend_on_seed_and_pool_only(random_pool, batch_of, answer_of):
    pools = [random_pool(seed, 12) for seed in range(8)]
    lots = [tuple(answer_of(FILTERS.build("random", {"k": 6}), pool).keep) for pool in pools]
    assert len(set(lots)) == len(lots)
    again = FILTERS.build("random", {"k": 6})(batch_of(pools, nodes=32)).keep[:, :12]
    assert [tuple(row) for row in again.tolist()] == lots
    other = FILTERS.build("random", {"k": 6, "seed": -1})
    assert tuple(answer_of(other, pools[0]).keep) != lots[0]
    chance = FILTERS.build("random", {"k": 6})(batch_of([random_pool(s, 12) for s in range(300)]))
    assert (chance.keep.float().mean(dim=0) - 0.5).abs().max() < 0.1


def test_component_drops_what_hangs_apart(answer_of, random_pool):
    basis = torch.eye(8)
    near = torch.stack([basis[0] + 0.1 * basis[i] for i in (1, 2, 3)])
    far = torch.stack([basis[7] + 0.1 * basis[i] for i in (4, 5)])
    pool = replace(random_pool(0, 5), query=basis[0], candidates=torch.cat([near, far]))
    filter_ = FILTERS.build("connected_component", {"percentile": 30})
    answer = answer_of(filter_, pool)
    assert answer.keep == [True, True, True, False, False]
    assert answer.reason[3:] == [Reason.OUTSIDE_COMPONENT] * 2
    assert filter_.describe(Reason.OUTSIDE_COMPONENT, float("nan")) == "no edge to the query"
    everything = FILTERS.build("connected_component", {"percentile": 100})
    assert answer_of(everything, pool).keep == [True] * 5


def test_degree_counts_candidates_and_not_the_query(answer_of, random_pool):
    basis = torch.eye(8)
    # 0 is near all others, which are apart from each other
    middle = basis[1:4].sum(dim=0)[None]
    pool = replace(random_pool(0, 4), query=basis[5], candidates=torch.cat([middle, basis[1:4]]))
    answer = answer_of(FILTERS.build("degree", {"k": 1, "percentile": 25}), pool)
    assert answer.value.tolist() == [3, 1, 1, 1]
    assert answer.keep == [True, False, False, False]


def test_words():
    filter_ = FILTERS.build("threshold", {})
    assert filter_.describe(Reason.LOW_SCORE, 0.25) == "low score: 0.25 under the threshold cut"
    assert filter_.describe(Reason.KEPT, 0.75) == "kept"
    assert FILTERS.build("fixed_k", {}).describe(Reason.OUTSIDE_BUDGET, 0.1) == "others came first"


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_a_ratio_lies_between_none_and_all_of_the_best(share):
    with pytest.raises(SettingError, match=rf"`share` must lie in \(0, 1\]; got {share}"):
        FILTERS.build("ratio", {"share": share})
