"""Costs: the number of passes of a method, as an expression for people and its value."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import add, floordiv, mul, sub
from typing import Self

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
}


@dataclass(frozen=True)
class Passes:
    """Numbers of passes of a model for one picture.

    Attributes:
        forwards: number of passes from the picture to the logits.
        backwards: number of passes from the logits back.
    """

    forwards: int = 0
    backwards: int = 0

    @property
    def total(self) -> int:
        """Forward and backward passes together."""
        return self.forwards + self.backwards

    def __add__(self, other: Self) -> "Passes":
        return Passes(self.forwards + other.forwards, self.backwards + other.backwards)

    def __mul__(self, times: int) -> "Passes":
        return Passes(self.forwards * times, self.backwards * times)


def evaluate(expression: str, quantities: Mapping[str, object]) -> int | None:
    """Return the value of an expression of the catalogue.

    Args:
        expression: integers and names, joined by ``+``, ``-``, ``*``, ``//`` and parentheses: ``1 + channels``.
        quantities: values of names.

    Returns:
        The value; None if a quantity is unknown, or the expression is invalid.
    """
    try:
        return _value(_parsed(expression), quantities)
    except (KeyError, SyntaxError, TypeError, ValueError, ZeroDivisionError):
        return None


def names_in(expression: str) -> tuple[str, ...]:
    """Return the names in an expression, in order; empty if it is invalid."""
    try:
        return tuple(node.id for node in ast.walk(_parsed(expression)) if isinstance(node, ast.Name))
    except SyntaxError:
        return ()


@lru_cache(maxsize=256)
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression.strip(), mode="eval").body


def _value(node: ast.expr, quantities: Mapping[str, object]) -> int:
    if isinstance(node, ast.BinOp):
        operation = _OPERATIONS[type(node.op)]
        return operation(_value(node.left, quantities), _value(node.right, quantities))
    value = quantities[node.id] if isinstance(node, ast.Name) else getattr(node, "value", None)
    if not isinstance(value, int):
        raise TypeError(f"{ast.unparse(node)} is not a whole number")
    return value
