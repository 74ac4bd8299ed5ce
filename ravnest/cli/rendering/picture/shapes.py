"""SVG elements and colours. The colours are readable on light and on dark ground alike."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

WORDS = "#757b87"
"""Of text outside boxes: a contrast of 4.3 to white and to near black."""

INK, PAPER, EDGE = "#1f2733", "#f4f6f9", "#98a1af"
SHADE = "#8a93a3"
_LOW, _MIDDLE, _HIGH = (0x4C, 0x8B, 0xD6), (0xE2, 0xA3, 0x2B), (0xD6, 0x40, 0x2F)
_FILLS = ((0.9, "#f0aca2"), (0.75, "#f3d991"), (0.0, "#b4dec1"))

_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


def load_colour(load: float) -> str:
    """Blue at 0 over amber to red at 1."""
    share = min(1.0, max(0.0, load))
    first, second = (_LOW, _MIDDLE) if share < 0.5 else (_MIDDLE, _HIGH)
    part = share * 2 if share < 0.5 else share * 2 - 1
    mixed = (round(a + (b - a) * part) for a, b in zip(first, second, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def load_width(load: float) -> float:
    """Of a stroke: 1.5 at 0, 7 at 1."""
    return 1.5 + 5.5 * min(1.0, max(0.0, load))


def memory_colour(share: float) -> str:
    """Of the filled part of a box, by the thresholds that the text output has."""
    return next(colour for least, colour in _FILLS if share >= least)


def text(
    parent: Element,
    x: float,
    y: float,
    words: str,
    *,
    size: float = 12,
    colour: str = WORDS,
    anchor: str = "start",
    is_bold: bool = False,
) -> Element:
    """One line of text with its base line at y."""
    attributes = {"x": f"{x:g}", "y": f"{y:g}", "font-size": f"{size:g}", "fill": colour}
    if anchor != "start":
        attributes["text-anchor"] = anchor
    if is_bold:
        attributes["font-weight"] = "600"
    element = SubElement(parent, "text", attributes)
    element.text = words
    return element


def rectangle(
    parent: Element, x: float, y: float, width: float, height: float, **attributes: str
) -> Element:
    """A rectangle; underscores in attribute names stand for hyphens."""
    places = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return SubElement(parent, "rect", places | _named(attributes))


def path(parent: Element, course: str, **attributes: str) -> Element:
    """A path; underscores in attribute names stand for hyphens."""
    return SubElement(parent, "path", {"d": course} | _named(attributes))


def document(width: float, height: float, title: str) -> Element:
    """The outermost element of a picture of its own."""
    root = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": f"{width:g}",
            "height": f"{height:g}",
            "viewBox": f"0 0 {width:g} {height:g}",
            "font-family": _FONT,
            "role": "img",
        },
    )
    return titled(root, title)


def titled(element: Element, words: str) -> Element:
    """Words that a browser shows when the pointer is on an element."""
    title = Element("title")
    title.text = words
    element.insert(0, title)
    return element


def _named(attributes: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in attributes.items()}
