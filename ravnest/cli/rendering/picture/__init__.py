"""The topology of a plan as SVG."""

from ravnest.cli.rendering.picture.drawing import draw_plan

__all__ = ["draw_plan"]
