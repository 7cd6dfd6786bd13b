"""The graph of a pool: nodes by similarity of their texts, edges by their length in the flow."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ricci_gpu.explain.candidate import Candidate, glyph
from ricci_gpu.explain.layout import layout
from ricci_gpu.explain.markup import Markup, join, tag

SIZE = 420
MARGIN = 22
# Upper ends of the classes of edge length; what is longer is the last class.
CLASSES = (0.25, 0.5, 1.0 + 1e-9, 2.0)


@dataclass(frozen=True)
class Edge:
    """Two nodes, 0 the query and ``n`` candidate number n, and the length of their edge."""

    source: int
    target: int
    length: float


class PoolGraph:
    """Draws the same nodes at the same places with the edges of any moment.

    Args:
        dissimilarity: between all nodes, query first, ``[n + 1, n + 1]``.
    """

    def __init__(self, candidates: Sequence[Candidate], dissimilarity: np.ndarray) -> None:
        self._candidates = candidates
        self._radius = 12.0 if len(candidates) <= 40 else 8.5
        room = SIZE - 2 * MARGIN
        points = layout(dissimilarity, gap=2.7 * self._radius / room)
        self._points = MARGIN + room * points

    def draw(self, edges: Sequence[Edge], label: str) -> Markup:
        """The drawing; ``label`` says in words what it shows."""
        return tag(
            "svg",
            *self._edges(edges),
            *map(self._node, self._candidates),
            self._query(),
            viewBox=f"0 0 {SIZE} {SIZE}",
            class_="graph" if self._radius > 10 else "graph small",
            role="img",
            aria_label=label,
        )

    def _edges(self, edges: Sequence[Edge]) -> list[Markup]:
        """One path per class of edges: a graph of 128 nodes has thousands of them."""
        parts: dict[tuple[bool, str], list[str]] = defaultdict(list)
        for edge in edges:
            kind = "between"
            if edge.source == 0:
                kind = self._candidates[edge.target - 1].kind
            size = sum(edge.length > bound for bound in CLASSES)
            (x1, y1), (x2, y2) = self._points[edge.source], self._points[edge.target]
            parts[edge.source == 0, f"edge {kind} length-{size}"].append(
                f"M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}"
            )
        return [tag("path", d="".join(parts[key]), class_=key[1]) for key in sorted(parts)]

    def _node(self, candidate: Candidate) -> Markup:
        x, y = self._points[candidate.number]
        return glyph(candidate, x, y, self._radius)

    def _query(self) -> Markup:
        x, y = self._points[0]
        r = 1.35 * self._radius
        diamond = f"M{x:.1f} {y - r:.1f}l{r:.1f} {r:.1f}l{-r:.1f} {r:.1f}l{-r:.1f} {-r:.1f}z"
        return join(
            tag("path", tag("title", "the query"), d=diamond, class_="node query"),
            tag("text", "Q", x=x, y=y, class_="name query"),
        )
