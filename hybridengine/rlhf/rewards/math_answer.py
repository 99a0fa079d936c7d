r"""math_answer: 1 for an answer that is mathematically equal to the ground truth, else 0.

The answer is what stands behind the last `####` (GSM8K) or in the last `\boxed{}`, whichever comes
later, else what math-verify finds in the text. Plain numbers are compared exactly; everything else
by math-verify, without its timeouts: they are signals, and the process that calls this is timed.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.rewards.registry import reward

# Imported by a reward process before the first sample's time runs.
LIBRARIES = ("math_verify",)
# Data without one is refused before a run.
NEEDS_GROUND_TRUTH = True

_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?")
_WITH_UNIT = re.compile(r"(?P<number>\$?[+-]?[\d,.]*\d)(\s+[A-Za-z]{2,})+\.?")
# Characters. What is longer is no answer, and costs seconds to parse.
_LONGEST = 1000
_BOXED = re.compile(r"\\f?boxed\s*\{")


@reward("math")
def math_answer(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    strict: bool = False,
) -> float:
    r"""`strict`: an answer without `####` or `\boxed{}` is wrong. The ground truth may be a number,
    an expression, or a whole solution with either of them."""
    if ground_truth is None:
        raise UsageError("there is no ground truth to compare with. Set data.ground_truth_key.")
    expected = _marked(str(ground_truth))
    expected = str(ground_truth).strip() if expected is None else expected
    found = _marked(solution_str)
    if found is None and strict:
        return 0.0
    if found is None and _number(solution_str) is not None:
        found = solution_str.strip()
    return float(_equal(expected, found, solution_str))


def _equal(expected: str, found: str | None, solution: str) -> bool:
    """`found`: the marked answer, or None where `solution` has to be searched for one."""
    if found is not None:
        if not found or len(found) > _LONGEST:
            return False
        number, other = _number(expected), _number(found)
        if number is not None and other is not None:
            return number == other
        if expected == found:
            return True
    parsed = _parse(solution) if found is None else _parse(_as_math(found))
    return _verify(list(_expected(expected)), parsed)


def _marked(text: str) -> str | None:
    """The last answer that is marked as one; empty where nothing follows the mark."""
    hashes = text.rfind("####")
    boxed = [match for match in _BOXED.finditer(text) if match.end() > hashes]
    if boxed:
        return _in_braces(text[boxed[-1].end() :])
    return _of_line(text[hashes + 4 :]) if hashes >= 0 else None


def _of_line(text: str) -> str:
    """The first line, without emphasis, and without a unit in words behind a number."""
    line = text.strip().split("\n")[0].strip(" *")
    with_unit = _WITH_UNIT.fullmatch(line)
    return with_unit["number"] if with_unit else line


def _in_braces(text: str) -> str:
    """Up to the brace that closes what was opened before `text`; empty where none does."""
    depth = 1
    for position, character in enumerate(text):
        escaped = position > 0 and text[position - 1] == "\\"
        if not escaped:
            depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[:position].strip()
    return ""


def _number(text: str) -> Fraction | None:
    """A plain number, which may have a sign, commas between thousands, dollars, a full stop."""
    if len(text) > _LONGEST:
        return None
    bare = text.strip().strip("$").removeprefix("\\$").strip().removesuffix(".").replace("{,}", ",")
    if not _NUMBER.fullmatch(bare) or not any(c.isdigit() for c in bare):
        return None
    return Fraction(bare.replace(",", ""))


def _as_math(text: str) -> str:
    return text if "$" in text else f"${text}$"


@lru_cache(maxsize=4096)
def _expected(text: str) -> tuple[Any, ...]:
    """The parsed ground truth, which all responses of a group share."""
    return tuple(_parse(_as_math(text)))


def _parse(text: str) -> list[Any]:
    parsed: list[Any] = _library().parse(text, parsing_timeout=None)
    return parsed


def _verify(expected: list[Any], found: list[Any]) -> bool:
    return bool(_library().verify(expected, found, timeout_seconds=None))


@lru_cache(maxsize=1)
def _library() -> Any:
    """math_verify, without the warning that it has no timeouts."""
    import math_verify  # type: ignore[import-untyped]

    for part in ("parser", "grader"):
        logging.getLogger(f"math_verify.{part}").setLevel(logging.ERROR)
    return math_verify
