"""The part of a page for filters that compare one number per chunk."""

from collections.abc import Sequence

from ricci_gpu.explain.candidate import Candidate, glyph
from ricci_gpu.explain.markup import Markup, number, scrolling, tag
from ricci_gpu.explain.replay import Replay
from ricci_gpu.stages.controls import Threshold

WIDTH, ROW, LEFT, RIGHT, TOP = 900.0, 28.0, 48.0, 90.0, 32.0


def scores_section(replay: Replay, candidates: Sequence[Candidate]) -> Markup:
    """The filter value of every chunk against the cut."""
    settings = replay.config.filter
    title = tag("h2", f"The filter: {settings.name}")
    summary = (settings.__doc__ or "").strip().splitlines()[0].replace("``", "")
    judged = [each for each in candidates if each.hit.filter_value is not None]
    if not judged:
        why = "It compares no number that could be drawn; the reason stands with every chunk."
        return tag("section", title, tag("p", f"{summary} {why}" if candidates else summary))
    cut = _cut(replay, judged)
    how = (
        "One bar per chunk, largest value first; numbers are places in the retrieved pool. A "
        "filled disc is a kept chunk, a square a dropped one. "
    )
    how += (
        "The dashed line is the cut."
        if cut is not None
        else "No single value parts kept from dropped: other rules decided too."
        if {each.kind for each in judged} == {"kept", "dropped"}
        else f"All were {judged[0].kind}."
    )
    return tag(
        "section",
        title,
        tag("p", summary),
        scrolling(_bars(judged, cut), "Filter value of every chunk"),
        tag("p", tag("strong", "How to read it. "), how, class_="how"),
    )


def _cut(replay: Replay, judged: Sequence[Candidate]) -> float | None:
    """Where the rule cut: its own number, or halfway between the last kept and first dropped."""
    if isinstance(replay.config.filter, Threshold):
        return replay.config.filter.at_least
    kept = [_value(each) for each in judged if each.hit.kept]
    dropped = [_value(each) for each in judged if not each.hit.kept]
    if not kept or not dropped or min(kept) <= max(dropped):
        return None
    return (min(kept) + max(dropped)) / 2


def _bars(judged: Sequence[Candidate], cut: float | None) -> Markup:
    ordered = sorted(judged, key=_value, reverse=True)
    values = [_value(each) for each in judged] + ([] if cut is None else [cut])
    low, high = min(0.0, *values), max(0.0, *values)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return LEFT + (value - low) / span * (WIDTH - LEFT - RIGHT)

    parts = []
    for row, each in enumerate(ordered):
        y, value = TOP + ROW * row, _value(each)
        start, end = sorted((x(0.0), x(value)))
        parts += [
            glyph(each, 20.0, y + ROW / 2, 10.5),
            tag(
                "rect",
                x=start,
                y=y + 5,
                width=max(end - start, 1.0),
                height=ROW - 10,
                class_=f"bar {each.kind}",
            ),
            tag("text", number(value, 4), x=end + 6, y=y + ROW / 2 + 4),
        ]
    height = TOP + ROW * len(ordered) + 8
    if cut is not None:
        parts += [
            tag("line", x1=x(cut), x2=x(cut), y1=TOP - 6, y2=height - 4, class_="cutoff"),
            tag(
                "text",
                f"cut {number(cut, 4)}",
                x=x(cut),
                y=TOP - 12,
                text_anchor="middle",
                class_="cutoff-label",
            ),
        ]
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        class_="chart",
        role="img",
        aria_label=f"Filter values of {len(judged)} chunks",
    )


def _value(candidate: Candidate) -> float:
    value = candidate.hit.filter_value
    assert value is not None  # only such candidates are drawn
    return value
