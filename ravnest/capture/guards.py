"""Conditions on input sizes as plain data: parsed from an exporter's text, evaluated without eval.

An expression is an int, the symbol of a size, or a tuple of an operator and its operands:
`("==", ("%", "d0", 2), 0)` says that the size d0 is even.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Expression: TypeAlias = "int | str | tuple[Any, ...]"

MAX_DEPTH = 32

_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "max": max,
    "min": min,
    "and": lambda *operands: all(operands),
    "or": lambda *operands: any(operands),
    "not": operator.not_,
}
_NODES: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.And: "and",
    ast.Or: "or",
    ast.Not: "not",
}
_ARITY = {"max": None, "min": None, "and": None, "or": None, "not": 1}


def parse(text: str, symbols: Mapping[str, int | str]) -> Expression:
    """Parses an exporter's condition.

    Args:
        text: a Python expression over sizes.
        symbols: what each size is written as in `text` (unparsed the way `ast.unparse` does), and
            the symbol or fixed size it stands for.

    Raises:
        ValueError: it has a part that is no size, integer or known operator.
    """
    return _parse(ast.parse(text, mode="eval").body, symbols)


def _parse(node: ast.expr, symbols: Mapping[str, int | str]) -> Expression:
    if (known := symbols.get(ast.unparse(node))) is not None:
        return known
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return ("-", 0, _parse(operand, symbols))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ("not", _parse(operand, symbols))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _NODES:
            return (_NODES[type(op)], _parse(left, symbols), _parse(right, symbols))
        case ast.BoolOp(op=op, values=values):
            return (_NODES[type(op)], *(_parse(value, symbols) for value in values))
        case ast.Call(func=function, args=args, keywords=[]):
            name = ast.unparse(function).removeprefix("torch.sym_")
            if name in ("max", "min"):
                return (name, *(_parse(argument, symbols) for argument in args))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            sides = [_parse(side, symbols) for side in (left, *rest)]
            pairs = [
                (_NODES[type(op)], sides[i], sides[i + 1])
                for i, op in enumerate(ops)
                if type(op) in _NODES
            ]
            if len(pairs) == len(ops):
                return pairs[0] if len(pairs) == 1 else ("and", *pairs)
    raise ValueError(f"cannot express {ast.unparse(node)!r} as a condition on sizes")


def evaluate(expression: Expression, sizes: Mapping[str, int]) -> Any:
    """The value of an expression for given sizes; KeyError for an unknown symbol."""
    if isinstance(expression, str):
        return sizes[expression]
    if isinstance(expression, int):
        return expression
    name, *operands = expression
    return _OPERATORS[name](*(evaluate(operand, sizes) for operand in operands))


def describe(expression: Expression) -> str:
    """An expression as people write it."""
    if not isinstance(expression, tuple):
        return str(expression)
    name, *operands = expression
    parts = [describe(operand) for operand in operands]
    if name in ("max", "min", "not"):
        return f"{name}({', '.join(parts)})"
    return f"({f' {name} '.join(parts)})"


def is_plain_bound(expression: Expression) -> bool:
    """Whether it only compares one size with a number or itself, which a range says already."""
    if not isinstance(expression, tuple) or expression[0] not in ("==", "<", "<=", ">", ">="):
        return False
    left, right = expression[1:]
    if isinstance(left, tuple) or isinstance(right, tuple):
        return False
    return left == right or isinstance(left, int) or isinstance(right, int)


def check(data: Any, symbols: frozenset[str], depth: int = 0) -> Expression:
    """Turns JSON data from a file into an expression.

    Raises:
        ValueError: it is malformed, too deep, or names an unknown symbol or operator.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"condition is nested deeper than {MAX_DEPTH}")
    if isinstance(data, int) and not isinstance(data, bool):
        return data
    if isinstance(data, str) and data in symbols:
        return data
    if isinstance(data, list) and data and isinstance(data[0], str) and data[0] in _OPERATORS:
        wanted = _ARITY.get(data[0], 2)
        if len(data) >= 2 and wanted in (None, len(data) - 1):
            return (data[0], *(check(operand, symbols, depth + 1) for operand in data[1:]))
    raise ValueError(f"condition has an unknown part {str(data)[:80]!r}")
