"""Ricci-Filtration: drop the candidates whose edge to the query ends stretched.

Source: arXiv 2606.15482. Its defaults are this filter's defaults.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from ricci_gpu.batch import BUCKETS, QueryGraphBatch, Reason, Status
from ricci_gpu.errors import InputError, SettingError
from ricci_gpu.ops.adjacency import (
    EdgeList,
    EdgeRule,
    cosine_dissimilarity,
    edge_list,
    join_query,
    mutual_knn_graph,
    percentile_threshold,
    threshold_graph,
)
from ricci_gpu.ops.flow import ricci_flow
from ricci_gpu.ops.transport import SOLVERS
from ricci_gpu.ops.transport.interface import TransportSolver
from ricci_gpu.shapes import Bool, Float, Tensor
from ricci_gpu.stages.interface import FILTERS, Filter, good_nodes

# Stars and complete graphs end exactly on the cutoff: the comparison allows for rounding.
CUTOFF_TOLERANCE = {"float64": 1e-9, "float32": 1e-6}
# Graphs per chunk, so that memory stays flat: on a CPU the scalings of so many fit the second-level
# cache; a GPU needs far more to be busy (about 0.5 MB each at 20 candidates).
GRAPHS_AT_ONCE = 16
GRAPHS_AT_ONCE_CUDA = 4096
LARGEST_POOL = BUCKETS[-1] - 1


@FILTERS.register("ricci")
@dataclass(frozen=True)
class RicciFilter(Filter):
    """Build the pool graph, run the flow, keep what ends at most ``eta`` from the query.

    Args:
        graph: ``threshold`` joins by dissimilarity, ``mutual_knn`` joins mutual neighbours.
        rule: ``ge`` joins dissimilar chunks (reproduces the published table), ``le`` similar ones
            (as the theory reads).
        percentile: of the graph's own dissimilarities, 0 to 100; the threshold.
        percentile_over: count pairs of all ``nodes``, or of ``candidates`` only.
        neighbours: of ``mutual_knn``.
        query_edges: join the query to every candidate whatever the rule says.
        lengths: edges start at ``unit`` length or at their ``dissimilarity``.
        alpha, p: laziness and exponent of the node measure.
        step, iterations: of the flow.
        eta: keep a candidate when its query edge ends at most this long (the mean edge is 1).
        solver: ``exact``, ``checked``, ``sinkhorn`` or ``geomloss``, or a mapping with ``type`` and
            settings. Exact by default: compiled, it costs no more than the others
            (benchmarks/LOG.md).
        precision: of the flow. Stars and complete graphs end on the cutoff, which float32 misses by
            a rounding more. With ``sinkhorn`` on a CUDA device, float32 takes the fused kernel.
        trace: record every step for explanations.
    """

    graph: Literal["threshold", "mutual_knn"] = "threshold"
    rule: EdgeRule = "ge"
    percentile: float = 50.0
    percentile_over: Literal["nodes", "candidates"] = "nodes"
    neighbours: int = 5
    query_edges: bool = True
    lengths: Literal["unit", "dissimilarity"] = "unit"
    alpha: float = 0.5
    p: float = 2.0
    step: float = 1.0
    iterations: int = 20
    eta: float = 1.0
    solver: str | dict[str, Any] = "exact"
    precision: Literal["float64", "float32"] = "float64"
    trace: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("graph", self.graph, ("threshold", "mutual_knn"))
        _one_of("rule", self.rule, ("ge", "le"))
        _one_of("percentile_over", self.percentile_over, ("nodes", "candidates"))
        _one_of("lengths", self.lengths, ("unit", "dissimilarity"))
        _one_of("precision", self.precision, ("float64", "float32"))
        _require(0 <= self.percentile <= 100, "percentile", "in [0, 100]", self.percentile)
        _require(self.neighbours >= 1, "neighbours", "at least 1", self.neighbours)
        _require(0 <= self.alpha < 1, "alpha", "in [0, 1)", self.alpha)
        _require(self.p >= 0, "p", "at least 0", self.p)
        _require(0 < self.step <= 1, "step", "in (0, 1]", self.step)
        _require(self.iterations >= 0, "iterations", "at least 0", self.iterations)
        _require(self.eta > 0, "eta", "greater than 0", self.eta)
        self._solver()

    def _solver(self) -> TransportSolver:
        settings = {"type": self.solver} if isinstance(self.solver, str) else dict(self.solver)
        if "type" not in settings:
            raise SettingError(f"`solver` needs a `type`: one of {', '.join(SOLVERS.names())}.")
        return SOLVERS.build(settings.pop("type"), settings)

    def needs(self) -> set[str]:
        return {"embeddings"}

    def describe(self, reason: Reason, value: float) -> str:
        if reason == Reason.STRETCHED:
            return f"stretched: edge {value:.3g} > {self.eta:g}"
        if reason == Reason.KEPT and value == value:
            return f"kept: edge {value:.3g} <= {self.eta:g}"
        return super().describe(reason, value)

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        largest = int(batch.candidate_mask.sum(dim=1).amax()) if len(batch.keep) else 0
        if largest > LARGEST_POOL:
            raise InputError(
                f"the ricci filter takes pools of at most {LARGEST_POOL} candidates; got "
                f"{largest}. Retrieve fewer (`retrieve.k`), or use the token_transport filter, "
                "which has no limit."
            )
        pool = batch.keep.shape[1]
        batch, nodes = good_nodes(batch)
        length = torch.full((len(nodes), pool), torch.nan, dtype=torch.float64, device=batch.device)
        attached = torch.zeros_like(batch.keep)
        status, traces, solver = batch.status.clone(), [], self._solver()
        at_once = GRAPHS_AT_ONCE_CUDA if nodes.is_cuda else GRAPHS_AT_ONCE
        for first in range(0, len(nodes), at_once):
            chunk = slice(first, first + at_once)
            assert batch.node_emb is not None
            adjacency, weight, edges = self.pool_graph(batch.node_emb[chunk], nodes[chunk])
            flow = ricci_flow(
                weight.to(getattr(torch, self.precision)),
                edges,
                adjacency,
                solver,
                alpha=self.alpha,
                p=self.p,
                step=self.step,
                iterations=self.iterations,
                trace=self.trace,
            )
            length[chunk], attached[chunk] = _query_edges(flow.weight.double(), edges, pool)
            unfinished = ~flow.converged & (status[chunk] == Status.OK)
            status[chunk] = torch.where(unfinished, int(Status.NOT_CONVERGED), status[chunk])
            if self.trace:
                traces.append((adjacency, weight, edges, flow))
        short = length <= self.eta * (1.0 + CUTOFF_TOLERANCE[self.precision])
        # A pool of one, or one whose query has no usable vector, is not judged.
        judged = nodes[:, 1:] & (nodes[:, 1:].sum(dim=1, keepdim=True) >= 2)
        keep = torch.where(judged, attached & short, True)
        batch = batch.with_(
            filter_value=torch.where(judged & attached, length, torch.nan), status=status
        )
        preference = torch.where(attached, -length, -torch.inf)
        decided = self.decide(batch, keep, preference, Reason.STRETCHED)
        loose = judged & ~attached & (decided.reason == Reason.STRETCHED)
        reason = torch.where(loose, int(Reason.OUTSIDE_COMPONENT), decided.reason)
        details: dict[str, Any] | None = {"chunks": traces} if self.trace else batch.details
        return decided.with_(reason=reason, details=details)

    def pool_graph(
        self, node_emb: Float[Tensor, "B N D"], nodes: Bool[Tensor, "B N"]
    ) -> tuple[Bool[Tensor, "B N N"], Float[Tensor, "B E"], EdgeList]:
        """Adjacency, lengths and edges of the graphs at the start of the flow."""
        dissimilarity = cosine_dissimilarity(node_emb, nodes)
        if self.graph == "mutual_knn":
            adjacency = mutual_knn_graph(dissimilarity, nodes, self.neighbours)
        else:
            tau = percentile_threshold(dissimilarity, nodes, self.percentile, self.percentile_over)
            adjacency = threshold_graph(dissimilarity, nodes, tau, self.rule)
        if self.query_edges:
            adjacency = join_query(adjacency, nodes)
        edges = edge_list(adjacency)
        if self.lengths == "unit":
            weight = torch.ones(edges.mask.shape, dtype=torch.float64, device=nodes.device)
        else:
            graph = torch.arange(len(nodes), device=nodes.device)[:, None]
            weight = dissimilarity[graph, edges.source, edges.target]
        return adjacency, weight, edges


def _query_edges(
    weight: Float[Tensor, "B E"], edges: EdgeList, pool: int
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """Final length of each candidate's edge to the query, and whether there is one."""
    from_query = edges.mask & (edges.source == 0)
    column = torch.where(from_query, edges.target - 1, pool)
    length = weight.new_full((len(weight), pool + 1), torch.nan).scatter(1, column, weight)
    attached = torch.zeros_like(length, dtype=torch.bool).scatter(1, column, from_query)
    return length[:, :pool], attached[:, :pool]


def _one_of(setting: str, received: str, choices: tuple[str, ...]) -> None:
    _require(received in choices, setting, " or ".join(choices), received)


def _require(holds: bool, setting: str, rule: str, received: object) -> None:
    if not holds:
        raise SettingError(f"`{setting}` must be {rule}; got {received!r}.")
