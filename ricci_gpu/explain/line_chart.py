"""Lines over steps on a logarithmic axis, with the cutoff marked: one line per chunk."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ricci_gpu.explain.markup import Markup, join, number, tag

WIDTH, HEIGHT = 900, 410
LEFT, RIGHT, TOP, BOTTOM = 62.0, 100.0, 16.0, 46.0
LABELS_AT_MOST = 30
LABEL_GAP = 14.5
LOWEST = 1e-6  # of the largest value; smaller ones are drawn at the lower edge


@dataclass(frozen=True)
class Line:
    """Values at steps 0, 1, ...; ``kind`` is ``kept`` or ``dropped``."""

    label: str
    kind: str
    values: Sequence[float]


def line_chart(
    lines: Sequence[Line], cutoff: float, cutoff_label: str, y_label: str, x_label: str
) -> Markup:
    """The chart; each line has at least two values, all of them at least 0."""
    steps = max(len(line.values) for line in lines) - 1
    positive = [value for line in lines for value in line.values if value > 0] + [cutoff]
    high = max(positive) * 1.25
    low = max(min(positive) / 1.25, high * LOWEST)

    def x(step: int) -> float:
        return LEFT + step / steps * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        place = math.log(max(value, low) / low) / math.log(high / low)
        return HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM)

    grid = [
        join(
            tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick), class_="grid"),
            tag("text", number(tick), x=LEFT - 8, y=y(tick) + 4, text_anchor="end"),
        )
        for tick in _ticks(low, high)
    ]
    every = max(1, -(-steps // 10))
    grid += [
        tag("text", str(step), x=x(step), y=HEIGHT - BOTTOM + 18, text_anchor="middle")
        for step in range(0, steps + 1, every)
    ]
    drawn = [
        tag(
            "path",
            tag("title", f"chunk {line.label}: {number(line.values[-1])} at the end"),
            d=_path([(x(step), y(value)) for step, value in enumerate(line.values)]),
            class_=f"line {line.kind}",
        )
        for line in lines
    ]
    level = y(cutoff)
    ends = [(line.label, line.kind, y(line.values[-1])) for line in lines]
    if len(lines) > LABELS_AT_MOST:
        ends = []
    ends.append((cutoff_label, "cut", level))
    return tag(
        "svg",
        *grid,
        tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=level, y2=level, class_="cutoff"),
        *drawn,
        *_end_labels(ends),
        tag(
            "text",
            y_label,
            x=14,
            y=(HEIGHT - BOTTOM) / 2,
            transform=f"rotate(-90 14 {(HEIGHT - BOTTOM) / 2:g})",
            text_anchor="middle",
        ),
        tag("text", x_label, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="chart" if len(lines) <= LABELS_AT_MOST else "chart dense",
        role="img",
        aria_label=f"{y_label} of {len(lines)} chunks over {steps} steps, on a logarithmic axis",
    )


def how_named(lines: int) -> str:
    """How a reader finds the chunk of a line, as a sentence."""
    if lines <= LABELS_AT_MOST:
        return "The numbers at the right name the chunks."
    return "Hold the pointer over a line to see its chunk."


def _end_labels(ends: Sequence[tuple[str, str, float]]) -> list[Markup]:
    """(label, kind, height) at the right of the plot, moved apart, each led to its line."""
    edge, at = WIDTH - RIGHT, WIDTH - RIGHT + 24
    places = _apart([height for _, _, height in ends], TOP, HEIGHT - BOTTOM)
    labels = []
    for (label, kind, height), place in zip(ends, places, strict=True):
        leader = _path([(edge, height), (at - 4, place)])
        labels.append(tag("path", d=leader, class_=f"leader {kind}"))
        labels.append(tag("text", label, x=at, y=place + 4, class_=f"end {kind}"))
    return labels


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between, 1-2-5 where there are few decades, powers of ten where many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 2 else (1,)
    ticks = [factor * 10.0**decade for decade in decades for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _apart(places: Sequence[float], top: float, bottom: float) -> list[float]:
    """The places moved as little as needed so that labels do not cover each other."""
    order = sorted(range(len(places)), key=lambda row: places[row])
    gap = min(LABEL_GAP, (bottom - top) / max(len(places) - 1, 1))
    moved = list(places)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    over = moved[order[-1]] - bottom if order else 0.0
    if over > 0:
        moved[order[-1]] = bottom
        for after, before in pairwise(reversed(order)):
            moved[before] = min(moved[before], moved[after] - gap)
    return moved
