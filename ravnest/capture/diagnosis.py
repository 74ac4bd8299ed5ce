"""Turns what torch.export raises into a sentence: which module and line, why, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch import fx, nn

from ravnest.errors import CaptureError

_PACKAGE = str(Path(__file__).resolve().parent)
_TORCH = str(Path(torch.__file__).resolve().parent)
_ADVICE = (
    (
        ("data-dependent", "Could not guard", "Could not extract specialized integer"),
        "the path taken depends on a tensor's values; use torch.where or a mask instead of a "
        "Python if or loop over them",
    ),
    (
        (".numpy()", "numpy"),
        "numpy cannot be captured; use the torch function of the same name",
    ),
    (
        ("Mixing fake modes", "meta"),
        "keep the model and the example inputs on the same device",
    ),
)
_DEFAULT_ADVICE = (
    "rewrite that part with torch operators only; torch.export.export(model, args, strict=False) "
    "shows whether it is captured"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a model's code.

    Attributes:
        module: path of the innermost submodule, "" for the model itself or when unknown.
        kind: its class.
        line: `file:line`, "" when unknown.
    """

    module: str
    kind: str
    line: str

    def __str__(self) -> str:
        module = f" in module {self.module!r} ({self.kind})" if self.module else ""
        return f"{module} at {self.line}" if self.line else module


@dataclass(frozen=True, slots=True)
class Attempt:
    """A step of the fallback chain that failed.

    Attributes:
        what: how the capture was tried, in a few words.
        reason: the first meaningful line of what went wrong.
    """

    what: str
    reason: str


def explain(
    error: Exception, model: nn.Module, mode: str, attempts: Sequence[Attempt] = ()
) -> CaptureError:
    """A CaptureError that says in its first line what `error` hides in pages of text.

    Args:
        error: what the last attempt raised.
        model: the module that was exported.
        mode: `train` or `eval`.
        attempts: every step that was tried, the last one included.
    """
    place = place_of(error, model)
    reason = first_lines(str(error)) or type(error).__name__
    advice = next((text for words, text in _ADVICE if any(w in reason for w in words)), None)
    return CaptureError(
        f"{type(model).__name__} cannot be captured in {mode} mode{place}: "
        f"{type(error).__name__}: {reason}{tried(attempts)}",
        hint=f"{advice or _DEFAULT_ADVICE}{leaf_hint(place)}",
    )


def tried(attempts: Sequence[Attempt]) -> str:
    """The steps of a fallback chain as lines to put behind a message; none for a single step."""
    if len(attempts) < 2:
        return ""
    lines: list[str] = []
    for before, attempt in zip((None, *attempts), attempts, strict=False):
        same = before is not None and before.reason == attempt.reason
        lines.append(f"\n  tried {attempt.what}: {'the same' if same else attempt.reason}")
    return "".join(lines)


def first_lines(text: str, limit: int = 300) -> str:
    """The first paragraph of a long message, on one line."""
    paragraph: list[str] = []
    for line in text.strip().splitlines():
        if not line.strip():
            break
        paragraph.append(line.strip())
    joined = " ".join(paragraph)
    return joined if len(joined) <= limit else f"{joined[:limit]}..."


def origin(node: fx.Node) -> str:
    """Module and line that a node comes from, as far as the exporter recorded them."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = stack[-1][0] if stack and isinstance(stack[-1], tuple) else ""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    places = [line for line in lines if line.startswith("File ")]
    own = [line for line in places if not any(f in line for f in (_TORCH, _PACKAGE, '"torch/'))]
    place = own[-1] if own else ""
    parts = []
    if module and module not in ("model", "L['self']"):
        parts.append(f"in module {module.removeprefix('model.')!r}")
    if place:
        parts.append(f"at {place}")
    return f" ({', '.join(parts)})" if parts else ""


def place_of(error: Exception, model: nn.Module) -> Place:
    """Where in the model's code an error was raised."""
    return _place(list(traceback.walk_tb(error.__traceback__)), model)


def current_place(model: nn.Module) -> Place:
    """Where the model's code is at the moment; for what is called back from a forward pass."""
    return _place(list(traceback.walk_stack(None))[::-1], model)


def leaf_hint(place: Place) -> str:
    """How the submodule at a place can stay the code it is, to put behind another hint."""
    if not place.module:
        return "; or move that part into a submodule, which may stay code: see `leaves`"
    return (
        f"; or let {place.module!r} ({place.kind}) stay code: pass "
        f"leaves={{{place.module!r}: 'package.module:function'}}, a function without arguments "
        "that builds it, and Node(trusted_modules=('package.module:function',)) on its provider"
    )


def _place(frames: Sequence[tuple[FrameType, int]], model: nn.Module) -> Place:
    """The innermost module and line of the model among frames, outermost first."""
    modules = {id(module): name for name, module in model.named_modules()}
    name, kind = "", ""
    for frame, _ in reversed(frames):
        found = frame.f_locals.get("self")
        if id(found) in modules:
            name, kind = modules[id(found)], type(found).__name__
            break
    # The callers of the capture are no part of the model: only what torch calls back counts.
    files = [frame.f_code.co_filename for frame, _ in frames]
    inside = next((i for i, file in enumerate(files) if file.startswith(_PACKAGE)), len(files))
    for frame, line in reversed(frames[inside:]):
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _PACKAGE, "<")):
            return Place(name, kind, f"{file}:{line}")
    return Place(name, kind, "")
