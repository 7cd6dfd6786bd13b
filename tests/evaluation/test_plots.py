import re

import pytest

from ricci_gpu.evaluation.plots import Axis, Series, bar_chart, xy_chart


def test_axes_have_round_ticks():
    assert Axis.over("", [0.0, 1.0]).ticks() == [0.0, 0.5, 1.0]
    assert Axis.over("", [0.13, 9.0], logarithmic=True).ticks() == [
        0.1,
        0.2,
        0.5,
        1.0,
        2.0,
        5.0,
        10.0,
    ]
    assert Axis.over("", [3.0, 3.0]).place(3.0) == 0.5
    axis = Axis("", 1.0, 100.0, logarithmic=True)
    assert axis.place(10.0) == pytest.approx(0.5)


def test_points_stand_where_their_values_say():
    chart = xy_chart(
        [Series("a", [(0.0, 0.0), (1.0, 1.0)]), Series("b", [(0.5, 0.5)], "dots", ["here"])],
        "x",
        "y",
    )
    centres = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', chart)]
    (x0, y0), (x1, y1), middle = centres
    assert x0 < x1
    assert y0 > y1  # larger is higher
    assert middle == pytest.approx(((x0 + x1) / 2, (y0 + y1) / 2), abs=0.01)
    assert ">here<" in chart
    assert chart.startswith("<svg")


def test_bars_are_as_tall_as_their_values():
    chart = bar_chart([("a", [0.5, 0.25]), ("b", [0.0, 1.0])], "kept", "share")
    bars = re.findall(r"<rect[^>]*height=\"([\d.]+)\"[^>]*><title>", chart)
    tall = [float(bar) for bar in bars]
    assert tall[0] == pytest.approx(2 * tall[1], rel=1e-3)
    assert tall[3] == pytest.approx(2 * tall[0], rel=1e-3)
    assert tall[2] == 0
