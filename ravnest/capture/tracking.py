"""Which memory lives while a graph runs forward and backward: storages, and whose they are.

`LiveStorages` sees every operator that makes memory, so also the temporaries inside a backward pass
that no saved tensor shows. What a kernel allocates for itself, out of the dispatcher's sight, it
cannot see; of convolutions on the CPU it is known: oneDNN works on copies of everything in a layout
of its own. Works on fake tensors as on real ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_COPYING = frozenset({_aten.convolution.default, _aten.convolution_backward.default})


def _nothing(hidden_bytes: int) -> None:
    """Observes nothing."""


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the bytes of the storages that were made while it is on and are not freed yet.

    Args:
        present: tensors that are there before; their storages do not count.

    Attributes:
        num_bytes: of the living ones that count.
        present: numbers of the storages that do not.
        observed: called after every operator, with the bytes that its kernel held unseen.
    """

    def __init__(self, present: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0
        self.observed: Callable[[int], None] = _nothing
        self._living: dict[int, tuple[int, int]] = {}  # number and bytes, by address
        self._num_seen = 0
        found = {self.number_of(tensor) for tensor in present}
        self.present = frozenset(found)
        self.num_bytes = 0
        self._living = {key: (number, 0) for key, (number, _) in self._living.items()}

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """Tells the tensor's storage from all others, also from those whose address it took."""
        if tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._living:
            self._num_seen += 1
            self._living[key] = (self._num_seen, storage.nbytes())
            self.num_bytes += storage.nbytes()
            # The Python object lives as long as the storage itself.
            weakref.finalize(storage, self._drop, key).atexit = False
        return self._living[key][0]

    def sizes(self) -> list[int]:
        """Bytes of the living storages that count, one by one."""
        return [num_bytes for _, num_bytes in self._living.values()]

    def _drop(self, key: int) -> None:
        self.num_bytes -= self._living.pop(key)[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in _tensors(result):
            self.number_of(value)
        self.observed(_hidden_bytes(args, result) if func in _COPYING else 0)
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(values) if isinstance(each, torch.Tensor)]


def _hidden_bytes(args: Any, result: Any) -> int:
    """The copies of a convolution on the CPU."""
    return sum(each.nbytes for each in _tensors((args, result)) if each.device.type == "cpu")


class AutogradPositions:
    """Remembers which position of a graph made which node of autograd."""

    def __init__(self) -> None:
        self._positions: dict[Any, int] = {}  # holds the objects, so that they stay the same

    def made(self, value: Any, position: int) -> None:
        """The nodes behind a value that are new were made at this position."""
        pending = [each.grad_fn for each in _tensors(value)]
        while pending:
            node = pending.pop()
            if node is not None and node not in self._positions:
                self._positions[node] = position
                pending += [following for following, _ in node.next_functions]

    def current(self, default: int) -> int:
        """The position whose backward is running; `default` where that is nobody's."""
        return self._positions.get(torch._C._current_autograd_node(), default)
