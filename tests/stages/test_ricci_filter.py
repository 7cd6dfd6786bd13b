from dataclasses import replace

import pytest
import torch

from ricci_gpu.batch import Reason, Status
from ricci_gpu.errors import InputError
from ricci_gpu.ops.adjacency import cosine_dissimilarity
from ricci_gpu.stages.ricci_filter import GRAPHS_AT_ONCE, RicciFilter


@pytest.fixture(scope="module")
def pools(random_pool):
    return [random_pool(seed, count) for seed, count in enumerate((9, 4, 6))]


def test_127_candidates_are_taken(random_pool, batch_of):
    result = RicciFilter(iterations=1)(batch_of([random_pool(0, 127), random_pool(1, 3)]))
    assert 0 < int(result.keep[0].sum()) < 127
    assert torch.isfinite(result.filter_value[0]).all()
    assert (result.status == Status.OK).all()


def test_128_candidates_are_refused_with_a_way_out(random_pool, batch_of):
    batch = batch_of([random_pool(1, 3), random_pool(0, 128)])
    with pytest.raises(
        InputError,
        match=r"pools of at most 127 candidates; got 128\. Retrieve fewer \(`retrieve\.k`\), or "
        r"use the token_transport filter, which has no limit",
    ):
        RicciFilter(iterations=1)(batch)


def test_the_limit_counts_candidates_and_not_padding(pools, batch_of, answers):
    wide = answers(RicciFilter(iterations=1)(batch_of(pools, nodes=256)))
    for one, other in zip(wide, answers(RicciFilter(iterations=1)(batch_of(pools))), strict=True):
        one.require_same(other)


def test_without_steps_every_edge_keeps_its_length(pools, batch_of):
    batch = batch_of(pools)
    unit = RicciFilter(iterations=0)(batch)
    real = batch.candidate_mask
    assert torch.equal(unit.keep, real)
    assert (unit.filter_value[real] == 1).all()
    assert torch.isnan(unit.filter_value[~real]).all()
    natural = RicciFilter(iterations=0, lengths="dissimilarity", eta=0.4)(batch)
    expected = cosine_dissimilarity(batch.node_emb, batch.node_mask)[:, 0, 1:]
    assert torch.equal(natural.filter_value[real], expected[real])
    assert torch.equal(natural.keep, real & (expected <= 0.4))
    assert (natural.reason[real & ~natural.keep] == Reason.STRETCHED).all()


def test_the_order_stays_that_of_the_retrieval(pools, batch_of):
    batch = batch_of(pools, poison=False)
    assert torch.equal(RicciFilter(iterations=2)(batch).score, batch.score)


def test_a_larger_cutoff_keeps_more(pools, batch_of):
    batch = batch_of(pools)
    few, some, all_ = (RicciFilter(iterations=3, eta=eta)(batch).keep for eta in (0.5, 1.0, 1e6))
    assert (few <= some).all()
    assert (some <= all_).all()
    assert torch.equal(all_, batch.candidate_mask)


@pytest.mark.parametrize("rule", ["ge", "le"])
def test_candidates_without_an_edge_to_the_query_say_so(rule, pools, batch_of, answers):
    batch = batch_of(pools)
    filter_ = RicciFilter(iterations=1, rule=rule, query_edges=False, trace=True)
    result = filter_(batch)
    [(adjacency, *_)] = result.details["chunks"]
    loose = batch.candidate_mask & ~adjacency[:, 0, 1:]
    assert loose.any()
    assert not result.keep[loose].any()
    assert (result.reason[loose] == Reason.OUTSIDE_COMPONENT).all()
    assert torch.isnan(result.filter_value[loose]).all()
    assert filter_.describe(Reason.OUTSIDE_COMPONENT, float("nan")) == "no edge to the query"
    with_edges = RicciFilter(iterations=1, rule=rule)(batch)
    assert not (with_edges.reason == Reason.OUTSIDE_COMPONENT).any()


def test_mutual_neighbours_make_a_sparser_graph(pools, batch_of):
    batch = batch_of(pools)
    degrees = {}
    for neighbours in (1, 3, 20):
        filter_ = RicciFilter(
            graph="mutual_knn", neighbours=neighbours, query_edges=False, iterations=1, trace=True
        )
        [(adjacency, *_)] = filter_(batch).details["chunks"]
        assert torch.equal(adjacency, adjacency.mT)
        degrees[neighbours] = adjacency.sum(dim=2)
        assert int(degrees[neighbours].max()) <= neighbours
    size = batch.node_mask.sum(dim=1, keepdim=True) - 1
    assert torch.equal(degrees[20], torch.where(batch.node_mask, size, 0))  # all others are near


def test_percentile_may_leave_out_the_query(pools, batch_of):
    batch = batch_of(pools)
    edges = [
        RicciFilter(percentile_over=over, iterations=0, trace=True)(batch).details["chunks"][0][2]
        for over in ("nodes", "candidates")
    ]
    assert edges[0].mask.sum() != edges[1].mask.sum()


def test_solvers_by_name_and_with_settings(pools, batch_of):
    batch = batch_of(pools)
    exact = RicciFilter(iterations=2)(batch)
    same = RicciFilter(iterations=2, solver={"type": "exact"})(batch)
    assert torch.equal(exact.keep, same.keep)
    fine = {"type": "sinkhorn", "epsilon": 0.02, "iterations": 300}
    near = RicciFilter(iterations=2, solver=fine)(batch)
    real = batch.candidate_mask
    assert (near.filter_value[real] - exact.filter_value[real]).abs().max() < 1e-2


def test_an_unfinished_solver_is_reported_per_query(pools, random_pool, batch_of):
    batch = batch_of([*pools, random_pool(0, 1)])
    rough = {"type": "sinkhorn", "iterations": 1, "tolerance": 1e-9}
    status = RicciFilter(iterations=2, solver=rough)(batch).status.tolist()
    assert status == [Status.NOT_CONVERGED] * 3 + [Status.TOO_FEW_NODES]
    broken = replace(pools[1], candidates=torch.zeros_like(pools[1].candidates))
    status = RicciFilter(iterations=2, solver=rough)(batch_of([pools[0], broken])).status.tolist()
    assert status == [Status.NOT_CONVERGED, Status.BAD_EMBEDDING]


def test_trace_holds_the_graph_and_every_step(random_pool, batch_of):
    pools = [random_pool(seed, 4) for seed in range(GRAPHS_AT_ONCE + 2)]
    batch = batch_of(pools)
    result = RicciFilter(iterations=3, trace=True)(batch)
    chunks = result.details["chunks"]
    assert [len(adjacency) for adjacency, *_ in chunks] == [GRAPHS_AT_ONCE, 2]
    _, weight, edges, flow = chunks[1]
    assert len(flow.trace) == 3
    assert torch.equal(flow.trace[0].weight[edges.mask], weight[edges.mask])
    assert (flow.trace[0].curvature.kappa[edges.mask] <= 1 + 1e-9).all()
    mean = flow.weight.sum(dim=1) / edges.mask.sum(dim=1)
    assert (mean - 1).abs().max() < 1e-12
    from_query = edges.mask & (edges.source == 0)
    for row in range(2):
        final = flow.weight[row][from_query[row]]  # edges come in row-major order
        assert torch.equal(final, result.filter_value[GRAPHS_AT_ONCE + row])
    silent = RicciFilter(iterations=3)(batch)
    assert silent.details is None
    assert torch.equal(silent.filter_value, result.filter_value)


def test_a_star_ends_exactly_on_the_cutoff_and_is_kept(random_pool, batch_of, answers):
    # all candidates alike: at rule `ge` they hang on the query alone, or on each other
    pool = random_pool(2, 1).at([0] * 7)
    for rule in ("ge", "le"):
        answer = answers(RicciFilter(rule=rule)(batch_of([pool])))[0]
        assert answer.keep == [True] * 7
        assert (answer.value - answer.value[0]).abs().max() < 1e-9


def test_lengths_of_zero_stay_zero(random_pool, batch_of, answers):
    pool = random_pool(2, 1)
    pool = replace(pool, candidates=pool.query[None]).at([0] * 3)
    answer = answers(RicciFilter(lengths="dissimilarity", iterations=3)(batch_of([pool])))[0]
    assert answer.value.tolist() == [0, 0, 0]
    assert answer.keep == [True] * 3


def test_words():
    filter_ = RicciFilter(eta=0.9)
    assert filter_.describe(Reason.STRETCHED, 1.2714) == "stretched: edge 1.27 > 0.9"
    assert filter_.describe(Reason.KEPT, 0.5) == "kept: edge 0.5 <= 0.9"
    assert filter_.describe(Reason.KEPT, float("nan")) == "kept"
    assert filter_.describe(Reason.OUTSIDE_BUDGET, 0.5) == "others came first"
