import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ricci_gpu.config import Config
from ricci_gpu.evaluation import structure
from ricci_gpu.evaluation.clusters import CLUSTERINGS, query_cluster
from ricci_gpu.evaluation.rules import catalogue, fused, standardised
from ricci_gpu.ops.adjacency import cosine_dissimilarity, percentile_threshold, threshold_graph
from ricci_gpu.ops.cutoffs import query_component
from ricci_gpu.stages import FILTERS


def _nodes(seed: int, size: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    vectors = torch.from_numpy(np.random.default_rng(seed).normal(size=(6, size, 5)))
    return normalize(vectors, dim=2), torch.ones(6, size, dtype=torch.bool)


def test_every_rule_decides_for_every_candidate(pools_of):
    pools = pools_of()
    for rule in catalogue(Config.load("default", ["retrieve.k=20"]), 20, 20):
        decision = rule.decide(pools)
        given = [each for each in (decision.statistic, decision.keep) if each is not None]
        assert given, rule.name
        assert all(tuple(each.shape) == (len(pools), 20) for each in given)
        assert not any(torch.isnan(each).any() for each in given if each.is_floating_point())


def test_rules_on_larger_pools_say_so():
    smaller = Config.load("default", ["retrieve.k=20"])
    rules = {rule.name: rule for rule in catalogue(smaller, 20, 50)}
    assert rules["default"].pool == 20
    assert rules["default filter, pool 50"].pool == 50
    assert "default filter, pool 20" not in rules  # that is the default
    assert rules["z-score MaxSim, pool 50"].pool == 50
    assert rules["ricci ge"].pool == 20
    larger = Config.load("default", ["retrieve.k=50"])
    rules = {rule.name: rule for rule in catalogue(larger, 20, 50)}
    assert rules["default"].pool == 50
    assert rules["default filter, pool 20"].pool == 20
    assert len(rules) == len(catalogue(larger, 20, 50))


def test_a_filter_as_a_rule_is_the_filter_of_the_product(pools_of):
    """Cutting the number at the filter's own cut gives the filter's own mask."""
    pools = pools_of()
    decisions = {
        rule.name: rule.decide(pools)
        for rule in catalogue(Config.load("default", ["retrieve.k=20"]), 20, 20)
    }
    default = decisions["default"]
    assert torch.equal(default.statistic >= 1 - 1e-5, default.keep)
    for name in ("ricci ge", "ricci le"):
        assert torch.equal(decisions[name].statistic >= -1 - 1e-9, decisions[name].keep)
    for name in ("z-score", "threshold"):
        product = pools.run(FILTERS.build(name.replace("-", "_"), {"at_least": 0.2})).keep
        assert torch.equal(decisions[f"{name} cosine"].statistic >= 0.2, product)
    best = pools.run(FILTERS.build("fixed_k", {"k": 3, "on": "maxsim"})).keep
    assert torch.equal(decisions["fixed k or fraction MaxSim"].statistic >= -2, best)


def test_component_is_that_of_the_threshold_graph():
    vectors, mask = _nodes(0)
    statistic = structure.component_rank(vectors, mask)
    distance = cosine_dissimilarity(vectors, mask)
    for percentile in (5.0, 20.0, 35.0, 60.0):
        tau = percentile_threshold(distance, mask, percentile)
        inside = query_component(threshold_graph(distance, mask, tau, "le"), mask)
        assert torch.equal(statistic >= -percentile, inside)


def test_pagerank_keeps_the_smallest_head_with_the_mass():
    vectors, mask = _nodes(1)
    before = -structure.pagerank_mass(vectors, mask)
    assert before.amin(dim=1).tolist() == [0] * 6
    assert (before < 1).all()
    # the solution is the fixed point of the walk
    graph = structure.half_graph(vectors, mask)
    weight = torch.where(graph, (1 - cosine_dissimilarity(vectors, mask)).clamp(min=0), 0.0)
    restart = torch.zeros(6, 9, dtype=torch.float64)
    restart[:, 0] = 1
    total = weight.sum(dim=2, keepdim=True)
    step = torch.where(total > 0, weight / total.clamp(min=1e-300), restart[:, None, :])
    p = restart
    for _ in range(80):
        p = 0.5 * restart + 0.5 * (step.mT @ p[..., None]).squeeze(-1)
    mass = p[:, 1:] / p[:, 1:].sum(dim=1, keepdim=True)
    ordered = mass.sort(dim=1, descending=True).values
    expected = (ordered.cumsum(dim=1) - ordered).sort(dim=1).values
    assert torch.allclose(before.sort(dim=1).values, expected, atol=1e-9)


def test_degree_and_mean_similarity_name_the_middle():
    basis = torch.eye(6, dtype=torch.float64)
    middle = normalize(basis[1:4].sum(dim=0), dim=0)
    vectors = torch.stack([basis[5], middle, basis[1], basis[2], basis[3]])[None]
    mask = torch.ones(1, 5, dtype=torch.bool)
    assert structure.mean_similarity(vectors, mask)[0].argmax() == 0
    assert structure.degree(vectors, mask)[0].argmax() == 0


@pytest.mark.parametrize("name", list(CLUSTERINGS))
def test_two_far_groups_are_told_apart(name):
    rng = np.random.default_rng(2)
    centres = np.eye(8)[[0] * 7 + [1] * 7]
    vectors = normalize(torch.from_numpy(centres + 0.05 * rng.normal(size=(14, 8))), dim=1)
    kept = query_cluster(vectors[None], CLUSTERINGS[name])[0]
    assert kept.any()
    assert not kept[6:].any() or bool(kept.all())  # never a part of the other group
    if name in ("2-means", "spectral cut", "label propagation", "HDBSCAN"):
        assert kept.tolist() == [True] * 6 + [False] * 7


def test_fusion_adds_z_scores(pools_of):
    pools = pools_of()
    expected = standardised(pools.cosine) + 2 * standardised(pools.maxsim_idf)
    assert torch.equal(fused(pools, 2.0), expected)
    assert standardised(torch.ones(2, 4)).tolist() == [[0.0] * 4] * 2
