"""Words against chunks: how much of each word's mass went where."""

from collections.abc import Sequence

from ricci_gpu.explain.candidate import Candidate, glyph
from ricci_gpu.explain.markup import Markup, tag

LETTER = 8.2  # width of a letter of the column of words
HEAD, ROW, COLUMN = 34.0, 26.0, 40.0
FAINTEST = 0.005  # a share below it is an empty cell
# From which share on a cell's number needs the other ink, on light pages and on dark ones.
MIDDLE, STRONG = 0.57, 0.75


def heat_map(
    words: Sequence[str],
    candidates: Sequence[Candidate],
    share: Sequence[Sequence[float]],
    others: Sequence[float] | None = None,
) -> Markup:
    """One row per word, one column per chunk; a share is in [0, 1].

    Args:
        share: ``share[row][column]``.
        others: per word, what went to chunks that have no column here.
    """
    labels = [_short(word) for word in words]
    left = 20 + LETTER * max(map(len, labels))
    names = [f"chunk {candidate.number}" for candidate in candidates]
    rows = [list(row) for row in share]
    if others is not None:
        names.append("the other chunks")
        rows = [[*row, rest] for row, rest in zip(rows, others, strict=True)]
    wide, high = COLUMN * len(names), ROW * len(words)
    parts = [tag("rect", x=left, y=HEAD, width=wide, height=high, class_="ground")]
    for place, candidate in enumerate(candidates):
        parts.append(glyph(candidate, left + COLUMN * (place + 0.5), HEAD / 2, 11.0))
    if others is not None:
        x = left + wide - COLUMN / 2
        parts.append(tag("text", "others", x=x, y=HEAD / 2, class_="others"))
    for row, label in enumerate(labels):
        y = HEAD + ROW * row
        parts.append(tag("text", label, x=left - 8, y=y + 17, text_anchor="end", class_="word"))
        for place, name in enumerate(names):
            if rows[row][place] >= FAINTEST:
                tooltip = f"{words[row]}: {rows[row][place]:.1%} to {name}"
                parts += _cell(rows[row][place], left + COLUMN * place, y, tooltip)
    width, height = left + wide + 8, HEAD + high + 6
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        class_="heat",
        role="img",
        aria_label=f"Share of the mass of {len(words)} query words in {len(candidates)} chunks",
    )


def _cell(value: float, x: float, y: float, tooltip: str) -> list[Markup]:
    square = tag(
        "rect",
        tag("title", tooltip),
        x=x + 1,
        y=y + 1,
        width=COLUMN - 2,
        height=ROW - 2,
        class_="cell",
        fill_opacity=round(0.06 + 0.94 * value, 2),
    )
    if value < 0.01:
        return [square]
    tone = "strong" if value >= STRONG else "middle" if value >= MIDDLE else "pale"
    text = f"{100 * value:.0f}"
    return [square, tag("text", text, x=x + COLUMN / 2, y=y + 17, class_=f"share {tone}")]


def _short(word: str, most: int = 16) -> str:
    shown = word or "?"
    return shown if len(shown) <= most else shown[: most - 1] + "\u2026"
