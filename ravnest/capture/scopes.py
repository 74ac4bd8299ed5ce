"""The scopes of torch.no_grad and torch.autocast, as the nodes of a captured graph lie in them.

Torch's own exporter makes nested graphs of these scopes, and in doing so forgets a no_grad inside
an autocast. So its passes are left out, and the nodes that open and close a scope are read here.
It records nothing of torch.inference_mode, which is therefore traced as the no_grad it implies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import fx
from torch._export.passes import replace_autocast_with_hop_pass, replace_set_grad_with_hop_pass

from ravnest.capture.diagnosis import origin
from ravnest.capture.graphs import written
from ravnest.capture.regions import AUTOCAST_DTYPES, Autocast
from ravnest.errors import CaptureError

logger = logging.getLogger(__name__)


@contextmanager
def kept_flat() -> Iterator[None]:
    """Lets the exporter leave scopes as the nodes that open and close them."""
    passes = (
        (replace_autocast_with_hop_pass, "replace_autocast_with_hop_pass"),
        (replace_set_grad_with_hop_pass, "replace_set_grad_with_hop_pass"),
    )
    inference: Any = torch.inference_mode
    replacements: list[tuple[Any, str, Any]] = [
        *((module, name, lambda *given: given) for module, name in passes),
        (inference, "__enter__", _enter_as_no_grad),
        (inference, "__exit__", _exit_as_no_grad),
    ]
    originals = [getattr(owner, name) for owner, name, _ in replacements]
    try:
        for owner, name, replacement in replacements:
            setattr(owner, name, replacement)
        yield
    finally:
        for (owner, name, _), original in zip(replacements, originals, strict=True):
            setattr(owner, name, original)


def _enter_as_no_grad(mode: Any) -> None:
    mode.ravnest_scope = torch.set_grad_enabled(not mode.mode)


def _exit_as_no_grad(mode: Any, *error: Any) -> None:
    mode.ravnest_scope.__exit__(*error)


class GradientScope:
    """Whether gradients are tracked, and what an operator gets where they are not.

    Under no_grad an operator gets its inputs detached, so that nothing there wants a gradient. What
    it writes in place stays the tensor it was, with its gradient.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._enabled = True
        self._untracked: set[fx.Node] = set()
        self._detached: dict[fx.Node, fx.Node] = {}

    def enable(self, enabled: bool) -> None:
        """Goes from one scope to the next."""
        self._enabled = enabled
        self._detached.clear()

    def passed(self, arguments: Any) -> Any:
        """What stands for an operator's arguments in this scope."""
        return arguments if self._enabled else fx.node.map_arg(arguments, self._detach)

    def result(self, node: fx.Node, arguments: tuple[Any, ...]) -> fx.Node:
        """What stands for the operator's value from now on."""
        if self._enabled:
            return node
        if node.args and node.args[0] in written(node) and isinstance(arguments[0], fx.Node):
            return arguments[0]
        self._untracked.add(node)
        return node

    def _detach(self, node: fx.Node) -> fx.Node:
        value = node.meta.get("val")
        if node in self._untracked or not isinstance(value, torch.Tensor):
            return node
        if node.op == "get_attr" and not value.requires_grad:
            return node
        if node not in self._detached:
            self._detached[node] = self._graph.call_function(torch.ops.aten.detach.default, (node,))
            self._detached[node].meta = dict(node.meta)
        return self._detached[node]


class AutocastScope:
    """The autocast regions that are open at a node.

    Args:
        device_type: where the example is.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._open: list[tuple[fx.Node, Autocast | None]] = []
        self._num_regions = 0
        self._told: set[str] = set()

    def enter(self, node: fx.Node) -> None:
        """Enters the region that an exported node opens.

        Raises:
            CaptureError: a dtype that a stage file has no name for.
        """
        device, dtype, enabled, _ = cast("tuple[str, torch.dtype, bool, bool]", node.args)
        if enabled and dtype not in AUTOCAST_DTYPES:
            raise CaptureError(
                f"autocast to {dtype}{origin(node)} cannot be put into a stage",
                hint="use torch.bfloat16 or torch.float16",
            )
        self._open.append((node, self._region(node, device, dtype if enabled else None)))

    def leave(self, node: fx.Node) -> None:
        """Leaves the region that the exported node closes."""
        entered, _ = self._open.pop()
        assert node.args[0] is entered, "autocast regions are nested"

    def put_inside(self, node: fx.Node) -> None:
        """Notes at a node in which regions it stands."""
        regions = tuple(region for _, region in self._open if region is not None)
        if regions:
            node.meta["autocasts"] = regions

    def _region(self, node: fx.Node, device: str, dtype: torch.dtype | None) -> Autocast | None:
        """The region, None for one that does nothing to the example and so nothing elsewhere."""
        if device != self._device_type:
            if device not in self._told:
                logger.warning(
                    "torch.autocast(%r)%s does nothing to an example on %s: it is left out, "
                    "and providers compute that part in the dtype of its inputs",
                    *(device, origin(node), self._device_type),
                )
            self._told.add(device)
            return None
        if dtype is None and all(region is None for _, region in self._open):
            return None
        self._num_regions += 1
        return Autocast(self._num_regions, dtype)
