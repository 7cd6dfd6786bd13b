"""The part of a page that shows the Ricci flow of the pool."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ricci_gpu.explain.candidate import Candidate
from ricci_gpu.explain.line_chart import Line, how_named, line_chart
from ricci_gpu.explain.markup import Markup, join, number, scrolling, tag
from ricci_gpu.explain.pool_graph import Edge, PoolGraph
from ricci_gpu.explain.replay import Replay
from ricci_gpu.ops.adjacency import cosine_dissimilarity
from ricci_gpu.ops.flow import Curvature, FlowResult
from ricci_gpu.shapes import Float, Tensor
from ricci_gpu.stages.ricci_filter import RicciFilter

EXACT = 1e-9  # bounds nearer to each other than that are one value


class _Flow(NamedTuple):
    """The flow of the one graph: end nodes of its edges, weights before each step and at the end.

    ``column`` is the edge of each candidate to the query, by its number.
    """

    ends: list[tuple[int, int]]
    weights: list[list[float]]
    column: dict[int, int]
    result: FlowResult


def curvature_section(replay: Replay, candidates: Sequence[Candidate]) -> Markup:
    """Graph before and after, lengths of the query's edges, table of curvatures."""
    settings = replay.config.filter
    assert isinstance(settings, RicciFilter)  # `page` has chosen this section by its type
    if len(candidates) < 2:
        return tag(
            "section",
            tag("h2", "The flow"),
            tag(
                "p",
                "The flow compares the chunks of a pool. With fewer than two there is "
                "nothing to compare, and whatever came is kept.",
            ),
        )
    flow = _flow(replay)
    parts = [
        tag("h2", "The flow"),
        _meaning(settings),
        _graphs(replay, candidates, flow, settings),
    ]
    if flow.result.trace and flow.column:
        parts += [_lengths(candidates, flow, settings), _table(candidates, flow)]
    return tag("section", *parts)


def _flow(replay: Replay) -> _Flow:
    assert replay.batch.details is not None  # the replay asks for the trace
    [(_, weight, edges, result)] = replay.batch.details["chunks"]
    real = edges.mask[0]
    ends = list(zip(edges.source[0][real].tolist(), edges.target[0][real].tolist(), strict=True))
    steps = [step.weight for step in result.trace] or [weight]
    weights = [each[0][real].tolist() for each in [*steps, result.weight]]
    column = {target: edge for edge, (source, target) in enumerate(ends) if source == 0}
    return _Flow(ends, weights, column, result)


def _meaning(settings: RicciFilter) -> Markup:
    joined = {
        "threshold": {
            "ge": f"whose texts differ most (at or above the {settings.percentile:g}th percentile "
            "of all cosine dissimilarities in the pool)",
            "le": f"whose texts are most alike (at or below the {settings.percentile:g}th "
            "percentile of all cosine dissimilarities in the pool)",
        }[settings.rule],
        "mutual_knn": f"that are among each other's {settings.neighbours} nearest",
    }[settings.graph]
    parts = [
        tag(
            "p",
            f"Chunks {joined} are joined. "
            + ("The query is joined to every chunk. " if settings.query_edges else "")
            + f"In {settings.iterations} steps, edges inside well-connected groups shrink and "
            "edges between groups stretch; after each step the mean edge is 1 again. A chunk is "
            f"kept when its edge to the query ends no longer than {settings.eta:g}.",
        )
    ]
    if settings.query_edges and settings.lengths == "unit":
        parts.append(
            tag(
                "p",
                tag("strong", "What the number means. "),
                "The final length of a chunk\u2019s edge measures how central the chunk is in this "
                "pool. It is not a measure of relevance: every chunk is joined to the query, at "
                "the same starting length, so how well a chunk matches the query hardly enters. "
                "Over six judged collections this length told relevant chunks from others with an "
                "AUC of 0.41 to 0.59, where 0.5 is chance, while the plain cosine to the query, "
                "standardised within the pool, reached 0.86 to 0.93. A right answer can be "
                "dropped, and a wrong one kept, for the company it keeps.",
                class_="note",
            )
        )
    return join(*parts)


def _graphs(
    replay: Replay, candidates: Sequence[Candidate], flow: _Flow, settings: RicciFilter
) -> Markup:
    size = len(candidates) + 1
    assert replay.batch.node_emb is not None  # this filter reads embeddings
    mask = replay.batch.node_mask[:, :size]
    vectors = torch.nan_to_num(replay.batch.node_emb[:, :size])
    dissimilarity = cosine_dissimilarity(vectors, mask)[0].cpu().numpy()
    graph = PoolGraph(candidates, dissimilarity)
    figures = []
    for title, weights in (("Before", flow.weights[0]), ("After", flow.weights[-1])):
        edges = [Edge(*ends, length) for ends, length in zip(flow.ends, weights, strict=True)]
        label = f"{title} the flow: the query, {len(candidates)} chunks and {len(edges)} edges"
        figures.append(
            tag("figure", tag("figcaption", f"{title} the flow"), graph.draw(edges, label))
        )
    return join(
        tag("h3", "The pool as a graph"),
        tag("div", *figures, class_="pair"),
        _how_graphs(settings),
    )


def _how_graphs(settings: RicciFilter) -> Markup:
    return tag(
        "p",
        tag("strong", "How to read it. "),
        "Q is the query; numbers are places in the retrieved pool. A filled disc is a kept chunk, "
        "a square a dropped one. Nodes lie near each other when their texts are alike, at the "
        "same place in both drawings. Thick lines are short edges, thin lines long ones; edges "
        "from the query are coloured, and dashed where the chunk is dropped.",
        " At the start all edges are equally long." if settings.lengths == "unit" else "",
        class_="how",
    )


def _lengths(candidates: Sequence[Candidate], flow: _Flow, settings: RicciFilter) -> Markup:
    lines = [
        Line(
            str(candidate.number),
            candidate.kind,
            [weights[flow.column[candidate.number]] for weights in flow.weights],
        )
        for candidate in candidates
        if candidate.number in flow.column
    ]
    chart = line_chart(
        lines, settings.eta, f"cutoff {settings.eta:g}", "length of the edge to the query", "step"
    )
    return join(
        tag("h3", "The query\u2019s edges over the steps"),
        scrolling(chart, "Lengths of the query's edges over the steps"),
        tag(
            "p",
            tag("strong", "How to read it. "),
            "One line per chunk: the length of its edge to the query after each step, on a "
            "logarithmic axis. Kept chunks have solid lines, dropped ones dashed lines. "
            + how_named(len(lines)),
            class_="how",
        ),
    )


def _table(candidates: Sequence[Candidate], flow: _Flow) -> Markup:
    first, last = flow.result.trace[0].curvature, flow.result.trace[-1].curvature
    head = tag(
        "tr",
        *(
            tag("th", title, scope="col")
            for title in (
                "Chunk",
                "\u03ba, first step",
                "bounds",
                "\u03ba, last step",
                "bounds",
                "Final length",
            )
        ),
    )
    rows = [
        tag(
            "tr",
            tag("th", candidate.badge(), " ", _clip(candidate.hit.id), scope="row"),
            *_cells(first, flow.column[candidate.number]),
            *_cells(last, flow.column[candidate.number]),
            tag("td", number(flow.weights[-1][flow.column[candidate.number]])),
        )
        for candidate in candidates
        if candidate.number in flow.column
    ]
    table = tag("table", tag("thead", head), tag("tbody", *rows))
    return join(
        tag("h3", "Curvature of the query\u2019s edges"),
        scrolling(table, "Curvature of the query's edges"),
        tag(
            "p",
            tag("strong", "How to read it. "),
            "\u03ba = 1 \u2212 W\u2081/d compares the neighbourhoods of the two ends: near 1 when "
            "they coincide, negative when the edge is a bridge between groups. Each step "
            "multiplies the edge by 1 \u2212 \u03ba (at step size 1), then rescales. The bounds "
            "are what the transport solver guarantees.",
            class_="how",
        ),
    )


def _cells(curvature: Curvature, edge: int) -> list[Markup]:
    def at(values: Float[Tensor, "B E"]) -> float:
        # The real edges of the only graph come first in the padded list.
        return float(values[0, edge])

    def shown(value: float) -> str:
        return f"{value:+.3f}".replace("-", "\u2212")

    low, high = at(curvature.lower), at(curvature.upper)
    bounds = "exact" if high - low <= EXACT else f"{shown(low)} \u2026 {shown(high)}"
    return [tag("td", shown(at(curvature.kappa))), tag("td", bounds, class_="bounds")]


def _clip(name: str, most: int = 28) -> str:
    return name if len(name) <= most else name[: most - 1] + "\u2026"
