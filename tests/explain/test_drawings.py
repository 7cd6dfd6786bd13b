import math
import re
from itertools import pairwise

import numpy as np
import pytest

from ricci_gpu.explain.layout import layout
from ricci_gpu.explain.line_chart import Line, _apart, _ticks, line_chart
from ricci_gpu.explain.markup import Markup, join, number, tag


def distances(points):
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def test_layout_keeps_the_order_of_distances():
    line = np.abs(np.subtract.outer(np.arange(5.0), np.arange(5.0)))
    points = layout(line, gap=0.02)
    gaps = distances(points)
    assert gaps[0, 4] > gaps[0, 3] > gaps[0, 2] > gaps[0, 1]


@pytest.mark.parametrize("count", [2, 12, 100])
def test_layout_moves_duplicates_apart_and_stays_inside(count):
    points = layout(np.zeros((count, count)), gap=0.05)
    assert ((points >= 0) & (points <= 1)).all()
    apart = distances(points)[~np.eye(count, dtype=bool)]
    assert apart.min() > 0.04
    assert (points == layout(np.zeros((count, count)), gap=0.05)).all()


@pytest.mark.parametrize("count", [0, 1])
def test_layout_of_nothing(count):
    assert layout(np.zeros((count, count)), gap=0.1).shape == (count, 2)


def test_lines_are_logarithmic_and_zeros_stay_on_the_paper():
    lines = [Line("1", "kept", [1.0, 0.1, 0.01]), Line("2", "dropped", [1.0, 3.0, 0.0])]
    chart = line_chart(lines, 1.0, "cutoff 1", "length", "step")
    first, second = re.findall(r'd="M([^"]+)" class="line', chart)
    heights = [float(point.split()[1]) for point in first.split("L")]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.2)
    assert all(0 <= float(point.split()[1]) <= 410 for point in second.split("L"))


@pytest.mark.parametrize(("low", "high"), [(0.3, 2.0), (1e-6, 50.0), (0.9, 1.3)])
def test_ticks_are_round_and_inside(low, high):
    ticks = _ticks(low, high)
    assert ticks
    assert all(low <= tick <= high for tick in ticks)
    assert {f"{tick:.0e}"[0] for tick in ticks} <= {"1", "2", "5"}
    assert ticks == [float(f"{tick:.0e}") for tick in ticks]


def test_labels_move_apart_within_the_plot():
    moved = _apart([100.0, 100.0, 100.0, 395.0, 396.0], 10.0, 396.0)
    ordered = sorted(moved)
    assert all(after - before >= 14.4 for before, after in pairwise(ordered))
    assert 10.0 <= ordered[0] <= ordered[-1] <= 396.0


def test_text_is_escaped_and_markup_is_not():
    assert tag("p", "<b>&\"'", Markup("<i></i>")) == "<p>&lt;b&gt;&amp;&quot;&#x27;<i></i></p>"
    assert tag("a", title='"><script>', href=None, hidden=True, open=False) == (
        '<a title="&quot;&gt;&lt;script&gt;" hidden></a>'
    )
    assert join("\ud800\x00\n") == "\ufffd\ufffd\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "\u2013"),
        (math.nan, "\u2013"),
        (-math.inf, "\u2212∞"),
        (0.01234, "0.0123"),
        (-1e-9, "\u22121·10^\u22129"),
    ],
)
def test_numbers_for_readers(value, shown):
    assert number(value) == shown
