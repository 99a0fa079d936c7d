"""calculator: a tool that adds, subtracts, multiplies and divides what a response puts in brackets.

    prompt: "17 + 4 - 9 = "    response: "[17 + 4 - 9]"    observation: "12 "    response: "12"

A response that asks for nothing is the answer and ends the episode.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

from hybridengine.rlhf.data.samples import Sample
from hybridengine.rlhf.environments.protocol import Turn
from hybridengine.rlhf.environments.registry import environment

_CALL = re.compile(r"\[([^\[\]]*)\]\s*$")
_LONGEST = 200  # characters of an expression
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@environment("calculator")
class Calculator:
    """Logs `calls` and `bad_calls`, in which the expression made no sense.

    `demonstrations`: the share of samples, from the first on, in which a warm-up is shown the call
    and its answer; in the others it is shown the answer alone.
    """

    stop = ("]",)
    counts = ("calls", "bad_calls")

    def __init__(self, *, demonstrations: float = 1.0) -> None:
        self._share = demonstrations

    def reset(self, sample: Sample) -> str:
        self._sample = sample
        return ""

    def step(self, response: str) -> Turn:
        call = _CALL.search(response)
        if call is None:
            return Turn(None)
        value = evaluate(call.group(1))
        if value is None:
            return Turn("error ", numbers={"calls": 1, "bad_calls": 1})
        return Turn(f"{value} ", numbers={"calls": 1})

    def demonstration(self) -> tuple[str, str] | None:
        """Asks for what the prompt says before its equals sign."""
        shown = self._sample.index * self._share % 1 < self._share
        if not shown or not isinstance(self._sample.prompt, str):
            return None
        expression = self._sample.prompt.rpartition("=")[0] or self._sample.prompt
        return f"[{expression.strip()}]", str(self._sample.ground_truth)


def evaluate(expression: str) -> str | None:
    """The value of an expression of whole or decimal numbers, + - * / and parentheses: exact, with
    12 decimals where it is no whole number; None where it has no value."""
    if len(expression) > _LONGEST:
        return None
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
        if value.denominator == 1:
            return str(value.numerator)
        return f"{float(value):.12f}".rstrip("0").rstrip(".")
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    """Throws ValueError on anything but arithmetic."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
    raise ValueError("no arithmetic")
