"""The inputs a captured model takes: their names, nesting, dtypes and shapes; binds calls to them.

Built once from the example call; afterwards plain data that needs neither the model nor its code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from ravnest.capture.guards import Expression, evaluate
from ravnest.capture.guards import describe as describe_condition
from ravnest.errors import TrainingError
from ravnest.plan.structure import Structure

Scalar = bool | int | float | str | None


class ArgumentKind(StrEnum):
    """How `forward` declares a parameter."""

    POSITIONAL = "positional"
    KEYWORD = "keyword"
    VAR_POSITIONAL = "var_positional"
    VAR_KEYWORD = "var_keyword"


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """A dimension that may vary; equal symbols are equal sizes.

    Attributes:
        symbol: name of the size.
        minimum: smallest size the graph is right for.
        maximum: largest, None when unbounded.
    """

    symbol: str
    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor among the inputs.

    Attributes:
        name: wire name of the value, `input.` and the path to it, like `input.batch.x`.
        dtype: what the graph was traced with.
        shape: per dimension a fixed size or a range.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int | DynamicDim, ...]


@dataclass(frozen=True, slots=True)
class ConstantLeaf:
    """A plain value that was baked into the graph."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of `forward`.

    Attributes:
        value: structure over the signature's leaves, None when the example left it at a default
            that is no plain value (then nobody may pass it).
        default: what `forward` takes when it is left out.
        has_default: whether `default` is one.
    """

    name: str
    kind: ArgumentKind
    value: Structure | None
    default: Scalar = None
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class InputSignature:
    """What a call of the captured model must look like.

    Attributes:
        arguments: in the order of `forward`'s parameters.
        leaves: what the arguments' structures index into.
        guards: further conditions on the sizes that the graph relies on.
    """

    arguments: tuple[Argument, ...]
    leaves: tuple[TensorLeaf | ConstantLeaf, ...]
    guards: tuple[Expression, ...] = ()

    @property
    def tensors(self) -> tuple[TensorLeaf, ...]:
        """The tensor leaves, in order."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, TensorLeaf))

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Names the tensors of a call as the graph does.

        Arguments may come by position or by keyword, whichever way the example passed them;
        those left out take their default.

        Args:
            args: positional inputs.
            kwargs: keyword inputs under `forward`'s own names.

        Raises:
            TrainingError: the call does not fit the captured graph; says where and how.
        """
        given = self._by_parameter(args, kwargs)
        bound: dict[str, torch.Tensor] = {}
        for argument in self.arguments:
            if argument.name in given:
                if argument.value is None:
                    raise TrainingError(
                        f"input {argument.name!r} is given, the model was captured without it",
                        hint="capture the model with an example that passes it",
                    )
                self._match(argument.name, argument.value, given[argument.name], bound)
            elif argument.value is not None:
                self._match_default(argument, bound)
        self._check_sizes(bound)
        return bound

    def _by_parameter(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's values by parameter name."""
        rest = list(args)
        unused = dict(kwargs)
        given: dict[str, Any] = {}
        for argument in self.arguments:
            match argument.kind:
                case ArgumentKind.VAR_POSITIONAL:
                    given[argument.name], rest = tuple(rest), []
                case ArgumentKind.VAR_KEYWORD:
                    given[argument.name], unused = unused, {}
                case ArgumentKind.POSITIONAL if rest:
                    given[argument.name] = rest.pop(0)
                    if argument.name in unused:
                        raise TrainingError(f"argument {argument.name!r} is given twice")
                case _ if argument.name in unused:
                    given[argument.name] = unused.pop(argument.name)
        names = [argument.name for argument in self.arguments]
        if rest:
            raise TrainingError(
                f"{len(args)} positional inputs were given, "
                f"the model takes {len(args) - len(rest)}: {names}"
            )
        if unused:
            raise TrainingError(f"unknown inputs {sorted(unused)}; the model takes {names}")
        return given

    def _match_default(self, argument: Argument, bound: dict[str, torch.Tensor]) -> None:
        if not argument.has_default:
            raise TrainingError(
                f"input {argument.name!r} is missing",
                hint=f"the model was captured with {self._describe(argument.value)}",
            )
        assert argument.value is not None
        self._match(argument.name, argument.value, argument.default, bound)

    def _match(
        self, path: str, expected: Structure, value: Any, bound: dict[str, torch.Tensor]
    ) -> None:
        """Walks the captured structure and the given value together."""
        if isinstance(expected, int):
            self._match_leaf(path, self.leaves[expected], value, bound)
            return
        ((kind, children),) = expected.items()
        named = kind in ("dict", "record")
        wanted = [key for key, _ in children] if named else list(range(len(children)))
        present = _children(value)
        if present is None or set(present) != set(wanted):
            got = (
                type(value).__name__
                if present is None
                else f"{type(value).__name__} of {list(present)}"
            )
            raise TrainingError(f"input {path!r}: expected a {kind} of {wanted}, got {got}")
        for place, child in zip(wanted, children, strict=True):
            self._match(f"{path}.{place}", child[1] if named else child, present[place], bound)

    def _match_leaf(
        self,
        path: str,
        leaf: TensorLeaf | ConstantLeaf,
        value: Any,
        bound: dict[str, torch.Tensor],
    ) -> None:
        if isinstance(leaf, ConstantLeaf):
            if isinstance(value, torch.Tensor) or not _same(leaf.value, value):
                raise TrainingError(
                    f"input {path!r}: the model was captured with {leaf.value!r}, "
                    f"got {describe(value)}",
                    hint="plain values are part of the captured graph; capture again with this one",
                )
            return
        if not isinstance(value, torch.Tensor):
            raise TrainingError(f"input {path!r}: expected {describe(leaf)}, got {describe(value)}")
        fits = value.dtype == leaf.dtype and value.dim() == len(leaf.shape)
        for size, allowed in zip(value.shape, leaf.shape, strict=False):
            fits = fits and _size_fits(size, allowed)
        if not fits:
            raise TrainingError(f"input {path!r}: expected {describe(leaf)}, got {describe(value)}")
        bound[leaf.name] = value

    def _check_sizes(self, bound: Mapping[str, torch.Tensor]) -> None:
        """Equal symbols must be equal sizes, and the graph's own conditions must hold."""
        sizes: dict[str, tuple[int, str]] = {}
        for leaf in self.tensors:
            for dim, allowed in enumerate(leaf.shape):
                if not isinstance(allowed, DynamicDim):
                    continue
                size = bound[leaf.name].shape[dim]
                known, where = sizes.setdefault(allowed.symbol, (size, f"{leaf.name} dim {dim}"))
                if known != size:
                    raise TrainingError(
                        f"inputs disagree: {where} is {known} but {leaf.name} dim {dim} is {size}; "
                        "the model needs them equal"
                    )
        environment = {symbol: found for symbol, (found, _) in sizes.items()}
        for guard in self.guards:
            if not evaluate(guard, environment):
                listed = ", ".join(
                    f"{symbol} = {found} ({place})" for symbol, (found, place) in sizes.items()
                )
                raise TrainingError(
                    f"the model was captured under the condition {describe_condition(guard)}, "
                    f"which the inputs break: {listed}",
                    hint="capture the model with an example of the sizes you train with",
                )

    def _describe(self, value: Structure | None) -> str:
        if isinstance(value, int):
            return describe(self.leaves[value])
        return str(value)


def describe(value: Any) -> str:
    """A value or a leaf in words: dtype and shape for a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    if isinstance(value, TensorLeaf):
        return f"{value.dtype} of shape [{', '.join(map(_describe_dim, value.shape))}]"
    if isinstance(value, ConstantLeaf):
        return repr(value.value)
    return f"{type(value).__name__} {value!r}"[:200]


def _describe_dim(dim: int | DynamicDim) -> str:
    if isinstance(dim, int):
        return str(dim)
    if dim.maximum is None:
        return dim.symbol if dim.minimum <= 1 else f"{dim.symbol} >= {dim.minimum}"
    return f"{dim.minimum} <= {dim.symbol} <= {dim.maximum}"


def _size_fits(size: int, allowed: int | DynamicDim) -> bool:
    if isinstance(allowed, int):
        return size == allowed
    return size >= allowed.minimum and (allowed.maximum is None or size <= allowed.maximum)


def _same(expected: Scalar, given: Any) -> bool:
    if isinstance(expected, bool) or isinstance(given, bool):
        return expected is given
    return bool(expected == given)


def _children(value: Any) -> dict[Any, Any] | None:
    """The parts of a container by key or position, None when it is no container."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None
