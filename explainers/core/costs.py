"""How many passes through a model an explanation takes: one expression for people, and the number it stands for."""

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
    """How often a model runs for one picture.

    Attributes:
        forwards: passes from the picture to the logits.
        backwards: passes back.
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
    """Return the number that an expression of the catalogue stands for.

    Args:
        expression: integers and names, joined by ``+``, ``-``, ``*``, ``//`` and parentheses: ``1 + channels``.
        quantities: values of names.

    Returns:
        The number; None where a quantity is not known, or the expression is none.
    """
    try:
        return _value(_parsed(expression), quantities)
    except (KeyError, SyntaxError, TypeError, ValueError, ZeroDivisionError):
        return None


def names_in(expression: str) -> tuple[str, ...]:
    """Return the names in an expression, in their order; none for what is no expression."""
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
        raise TypeError(f"{ast.unparse(node)} is no whole number")
    return value
