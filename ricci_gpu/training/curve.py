"""The course of a training: a row per epoch, as CSV and as a picture."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ricci_gpu.explain.markup import Markup, join, number, tag

WIDTH, HEIGHT = 720, 300
LEFT, TOP, BOTTOM, GAP = 52.0, 30.0, 44.0, 70.0
PANEL = (WIDTH - 2 * LEFT - GAP) / 2
TRAIN, DEV = "#7a5195", "#00798c"


@dataclass(frozen=True)
class Point:
    """Means over one epoch, counted from 1; ``dev_ndcg`` is nDCG@10 of the reranked dev pools."""

    epoch: int
    train_loss: float
    dev_loss: float
    dev_ndcg: float

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch}: loss {self.train_loss:.4f}, on the dev part "
            f"{self.dev_loss:.4f}, nDCG@10 {self.dev_ndcg:.4f}"
        )


def write_csv(curve: Sequence[Point], path: Path) -> None:
    """A header and a row per epoch."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)])
        writer.writeheader()
        writer.writerows(asdict(point) for point in curve)


def draw_curve(curve: Sequence[Point]) -> Markup:
    """An SVG with the losses at the left and nDCG@10 at the right."""
    losses = [
        ("training", TRAIN, [point.train_loss for point in curve]),
        ("dev", DEV, [point.dev_loss for point in curve]),
    ]
    quality = [("dev", DEV, [point.dev_ndcg for point in curve])]
    return tag(
        "svg",
        tag("rect", width=WIDTH, height=HEIGHT, fill="white"),
        _panel("loss", losses, LEFT),
        _panel("nDCG@10", quality, LEFT + PANEL + GAP),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        font_family="sans-serif",
        font_size=12,
        role="img",
        aria_label=f"loss and nDCG@10 over {len(curve)} epochs",
    )


def _panel(title: str, lines: Sequence[tuple[str, str, Sequence[float]]], left: float) -> Markup:
    values = [value for _, _, line in lines for value in line]
    low, high = min(values), max(values)
    if high == low:
        low, high = low - 0.5, high + 0.5
    epochs = len(lines[0][2])

    def x(place: int) -> float:
        return left + (PANEL / 2 if epochs == 1 else place / (epochs - 1) * PANEL)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [tag("text", title, x=left, y=TOP - 12, font_weight="bold")]
    for step in range(5):
        tick = low + step / 4 * (high - low)
        parts.append(
            tag("line", x1=left, x2=left + PANEL, y1=y(tick), y2=y(tick), stroke="#dddddd")
        )
        parts.append(tag("text", number(tick), x=left - 6, y=y(tick) + 4, text_anchor="end"))
    every = -(-epochs // 10)
    for place in range(0, epochs, every):
        parts.append(
            tag("text", str(place + 1), x=x(place), y=HEIGHT - BOTTOM + 18, text_anchor="middle")
        )
    parts.append(tag("text", "epoch", x=left + PANEL / 2, y=HEIGHT - 8, text_anchor="middle"))
    for place, (name, colour, line) in enumerate(lines):
        points = [(x(step), y(value)) for step, value in enumerate(line)]
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        parts.append(tag("path", d=path, fill="none", stroke=colour, stroke_width=2))
        parts += [tag("circle", cx=a, cy=b, r=2.5, fill=colour) for a, b in points]
        parts.append(
            tag("text", name, x=left + 90 + 80 * place, y=TOP - 12, fill=colour, font_weight="bold")
        )
    return join(*parts)
