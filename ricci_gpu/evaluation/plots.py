"""Plots as inline SVG: lines, dots and bars over plain axes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ricci_gpu.explain.markup import Markup, number, tag

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 64.0, 250.0, 14.0, 46.0
LEGEND_STEP = 17.0
COLOURS = (
    "#d1495b",
    "#00798c",
    "#8a6d00",
    "#5b5ea6",
    "#2e8b57",
    "#b5651d",
    "#7a7a7a",
    "#c05aa0",
    "#3f88c5",
    "#6b8e23",
)

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Points with a name; ``dots`` are labelled one by one where ``labels`` are given."""

    name: str
    points: Sequence[Point]
    form: Literal["line", "dots"] = "line"
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Axis:
    """An axis over ``low`` to ``high``."""

    label: str
    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def over(cls, label: str, values: Sequence[float], logarithmic: bool = False) -> "Axis":
        """An axis that holds all values with a little room."""
        low, high = min(values), max(values)
        if logarithmic:
            return cls(label, low / 1.3, high * 1.3, True)
        room = 0.05 * (high - low) or 0.5
        return cls(label, low - room, high + room)

    def place(self, value: float) -> float:
        """0 at the lower end, 1 at the upper."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values, five or so."""
        if self.logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            ticks = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
            return [tick for tick in ticks if self.low <= tick <= self.high]
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step)
        last = math.floor(self.high / step)
        return [round(place * step, 12) for place in range(first, last + 1)]


def xy_chart(
    series: Sequence[Series], x_label: str, y_label: str, logarithmic_x: bool = False
) -> Markup:
    """Lines and dots; a legend stands at the right."""
    points = [point for each in series for point in each.points]
    x_axis = Axis.over(x_label, [x for x, _ in points], logarithmic_x)
    y_axis = Axis.over(y_label, [y for _, y in points])
    x, y = _scales(x_axis, y_axis)
    drawn = [
        mark
        for row, each in enumerate(series)
        for mark in _marks(each, COLOURS[row % len(COLOURS)], row // len(COLOURS), x, y)
    ]
    return _frame(x_axis, y_axis, [*drawn, *_legend([each.name for each in series])])


def bar_chart(groups: Sequence[tuple[str, Sequence[float]]], x_label: str, y_label: str) -> Markup:
    """Bars at 0, 1, 2, ...; one colour per group, side by side."""
    count = max(len(values) for _, values in groups)
    x_axis = Axis(x_label, -0.5, count - 0.5)
    y_axis = Axis(y_label, 0.0, 1.05 * max(max(values) for _, values in groups))
    x, y = _scales(x_axis, y_axis)
    width = 0.8 / len(groups)
    bars = []
    for row, (name, values) in enumerate(groups):
        for place, value in enumerate(values):
            left = x(place - 0.4 + row * width)
            bars.append(
                tag(
                    "rect",
                    tag("title", f"{name}: {number(value)} at {place}"),
                    x=left,
                    y=y(value),
                    width=x(place - 0.4 + (row + 1) * width) - left,
                    height=y(0.0) - y(value),
                    fill=COLOURS[row % len(COLOURS)],
                )
            )
    return _frame(x_axis, y_axis, [*bars, *_legend([name for name, _ in groups])])


Scale = Callable[[float], float]


def _scales(x_axis: Axis, y_axis: Axis) -> tuple[Scale, Scale]:
    def x(value: float) -> float:
        return LEFT + x_axis.place(value) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - y_axis.place(value) * (HEIGHT - TOP - BOTTOM)

    return x, y


def _marks(each: Series, colour: str, style: int, x: Scale, y: Scale) -> list[Markup]:
    placed = [(x(a), y(b)) for a, b in each.points]
    labels = [*each.labels, *[""] * (len(placed) - len(each.labels))]
    marks = []
    if each.form == "line":
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in placed)
        dash = None if style == 0 else "6 3"
        marks.append(
            tag("path", d=path, fill="none", stroke=colour, stroke_width=2, stroke_dasharray=dash)
        )
    for (a, b), (value_x, value_y), label in zip(placed, each.points, labels, strict=True):
        says = f"{label or each.name}: {number(value_x)}, {number(value_y)}"
        radius = 2.5 if each.form == "line" else 4.5
        marks.append(tag("circle", tag("title", says), cx=a, cy=b, r=radius, fill=colour))
        if label:
            marks.append(tag("text", label, x=a + 7, y=b - 6, class_="small"))
    return marks


def _legend(names: Sequence[str]) -> list[Markup]:
    left = WIDTH - RIGHT + 16
    marks = []
    for row, name in enumerate(names):
        top = TOP + 8 + row * LEGEND_STEP
        marks.append(
            tag("rect", x=left, y=top - 8, width=11, height=11, fill=COLOURS[row % len(COLOURS)])
        )
        marks.append(tag("text", name, x=left + 17, y=top + 2, class_="small"))
    return marks


def _frame(x_axis: Axis, y_axis: Axis, inside: Sequence[Markup]) -> Markup:
    x, y = _scales(x_axis, y_axis)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    grid = []
    for tick in y_axis.ticks():
        grid.append(tag("line", x1=LEFT, x2=right, y1=y(tick), y2=y(tick), class_="grid"))
        grid.append(tag("text", number(tick), x=LEFT - 8, y=y(tick) + 4, text_anchor="end"))
    for tick in x_axis.ticks():
        grid.append(tag("line", x1=x(tick), x2=x(tick), y1=bottom, y2=bottom + 4, class_="grid"))
        grid.append(tag("text", number(tick), x=x(tick), y=bottom + 18, text_anchor="middle"))
    middle = (TOP + bottom) / 2
    return tag(
        "svg",
        *grid,
        *inside,
        tag("text", x_axis.label, x=(LEFT + right) / 2, y=HEIGHT - 8, text_anchor="middle"),
        tag(
            "text",
            y_axis.label,
            x=14,
            y=middle,
            transform=f"rotate(-90 14 {middle:g})",
            text_anchor="middle",
        ),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="chart",
        role="img",
        aria_label=f"{y_axis.label} against {x_axis.label}",
    )


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
