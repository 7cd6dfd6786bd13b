"""A candidate as every drawing names it: by its number in the pool, with its recorded decision."""

from dataclasses import dataclass

from ricci_gpu.corpus.records import Passage
from ricci_gpu.explain.markup import Markup, tag
from ricci_gpu.explain.replay import Replay, by_position
from ricci_gpu.output import Hit


@dataclass(frozen=True)
class Candidate:
    """One chunk.

    Args:
        number: its place in the pool, from 1; the name it has in every drawing.
        rank: among the hits, from 1; None when it is not one.
        prior: its retrieval score.
    """

    number: int
    rank: int | None
    hit: Hit
    passage: Passage
    prior: float

    @property
    def kind(self) -> str:
        """The class that colours it."""
        return "kept" if self.hit.kept else "dropped"

    def badge(self) -> Markup:
        """Its number in a filled disc when kept, in an empty square when dropped."""
        return tag("span", str(self.number), class_=f"badge {self.kind}")


def candidates_of(replay: Replay) -> list[Candidate]:
    """All candidates in the order of the pool, with the decisions that the run wrote."""
    ranking = replay.recorded.ranking
    rank_of = {hit.position: rank for rank, hit in enumerate(ranking.hits, start=1)}
    hits, passages = by_position(ranking), replay.recorded.passages
    priors = replay.batch.prior[0, : len(hits)].tolist()
    return [
        Candidate(hit.position + 1, rank_of.get(hit.position), hit, passage, prior)
        for hit, passage, prior in zip(hits, passages, priors, strict=True)
    ]


def glyph(candidate: Candidate, x: float, y: float, r: float) -> Markup:
    """The badge inside a drawing, linked to the chunk's text."""
    kind = candidate.kind
    shape = (
        tag("circle", cx=x, cy=y, r=r, class_="node kept")
        if candidate.hit.kept
        else tag("rect", x=x - r, y=y - r, width=2 * r, height=2 * r, class_="node dropped")
    )
    size = "" if r > 10 else " small"
    return tag(
        "a",
        tag("title", f"chunk {candidate.number}, {candidate.hit.id}: {candidate.hit.reason}"),
        shape,
        tag("text", str(candidate.number), x=x, y=y, class_=f"name {kind}{size}"),
        href=f"#chunk-{candidate.number}",
    )
