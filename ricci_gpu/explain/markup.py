"""HTML and SVG as escaped strings: plain text is escaped wherever it is put into a tag."""

import html
import math
import re

# Neither may stand in an HTML file: control characters, and halves of characters.
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_SHAPES = {"rect", "line", "path", "circle"}
_VOID = {"meta", "input"} | _SHAPES


class Markup(str):
    """Text that is markup already."""


def escape(text: str) -> Markup:
    """Text as markup that shows it."""
    return text if isinstance(text, Markup) else Markup(html.escape(_NOT_TEXT.sub("\ufffd", text)))


def join(*parts: str) -> Markup:
    """Parts one after the other, plain ones escaped."""
    return Markup("".join(map(escape, parts)))


def tag(name: str, /, *children: str, **attributes: str | int | float | None) -> Markup:
    """An element. ``class_`` gives ``class``, ``stroke_width`` gives ``stroke-width``.

    An attribute that is None or false is left out; one that is true stands without a value.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        parts.append(f" {key.rstrip('_').replace('_', '-')}")
        if value is not True:
            text = f"{value:.5g}" if isinstance(value, float) else str(value)
            parts.append(f'="{escape(text)}"')
    parts.append(">")
    if name not in _VOID or children:  # a shape may have a tooltip
        parts.append(f"{join(*children)}</{name}>")
    elif name in _SHAPES:
        parts[-1] = "/>"
    return Markup("".join(parts))


def number(value: float | None, digits: int = 3) -> str:
    """A number for readers; a dash where there is none."""
    if value is None or math.isnan(value):
        return "\u2013"
    if math.isinf(value):
        return "\u221e" if value > 0 else "\u2212\u221e"
    text = f"{value:.{digits}g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa}\u00b710^{int(exponent)}"
    return text.replace("-", "\u2212")


def scrolling(drawing: str, label: str) -> Markup:
    """A wide drawing in a box of its own that scrolls, by keyboard too."""
    return tag("div", drawing, class_="scroll", tabindex="0", role="region", aria_label=label)
