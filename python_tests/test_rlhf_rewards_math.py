r"""The math reward: marks, plain numbers, expressions, and what is wrong or no answer at all."""

import pytest

from hybridengine.rlhf.config.schema import Reward
from hybridengine.rlhf.rewards import Item, Scorer

pytestmark = pytest.mark.python

RIGHT = [
    ("72", "They sold 48 + 24 = 72 clips.\n#### 72"),
    ("48/2 = <<48/2=24>>24 more.\n#### 72", "#### 72"),  # GSM8K's answer column as it is
    ("1,234", "#### 1234"),
    ("1234", r"So it is \boxed{1{,}234}."),
    ("1234567", "#### $1,234,567"),
    (72, r"\boxed{72}"),
    (72.0, r"\boxed{72}"),
    ("72", r"\boxed{72.0}"),
    ("0.5", r"\boxed{\frac{1}{2}}"),
    (r"\frac{1}{2}", r"Hence $\boxed{\dfrac{2}{4}}$."),
    (r"\frac12", "#### 0.5"),
    ("-3", r"\boxed{-3}"),
    ("3", r"First \boxed{4}, but rather \boxed{3}"),
    ("3", "#### 4\n\nNo.\n#### 3"),
    ("3", "#### 4\nrather \\boxed{3}"),
    ("3", "#### 3\nbut that is all"),
    ("x^2+1", r"\boxed{1 + x^2}"),
    (r"\sqrt{2}", r"\boxed{2^{1/2}}"),
    (r"\{1, 2\}", r"\boxed{\{2, 1\}}"),
    ("(1, 2)", r"\boxed{(1,2)}"),
    (r"\boxed{10}", r"\boxed{10}"),
    ("10", "$10$"),
    ("7", "so the answer is 7."),
    ("7", "7"),
    ("10000000000", r"\boxed{10^{10}}"),
    ("72", "#### 72 clips."),
    ("18", "#### $18 per day"),
    ("72", "#### **72**"),
    ("72", "**#### 72**"),
    ("5", r"\boxed{5\%}"),
    ("5", r"\boxed{5 \text{ cm}}"),
    (r"\text{even}", r"\boxed{\text{even}}"),
]

WRONG = [
    ("72", "#### 73"),
    ("72", ""),
    ("72", "####"),
    ("72", r"\boxed{}"),
    ("72", r"\boxed{72"),
    ("1/3", "#### 0.333"),
    ("1234", "#### 1,23,4"),
    ("2", "#### 1 or 2"),
    ("1", "#### 1 or 2"),
    ("73", "#### 72 73"),
    ("2", "#### 2 x"),
    ("4", r"\boxed{4} or rather \boxed{5}"),
    ("4", "#### 5\nbecause 4 is too small"),
    ("-3", "#### 3"),
    ("(1, 2)", r"\boxed{(2, 1)}"),
    ("x^2+1", r"\boxed{x^2-1}"),
    ("12", r"\boxed{1,2}"),
    ("72", "no number at all"),
    ("72", "\\boxed{\\frac{}{}}"),
    ("72", "#### " + "9" * 5000),
    ("72", "9" * 5000),
    ("72", "\\boxed{" + "(" * 3000 + "72" + ")" * 3000 + "}"),
]


def value(ground_truth: object, solution: str, **options: object) -> float:
    config = Reward(functions=["math"], options={"math": options})
    found = Scorer.from_config(config).score_one(Item("gsm8k", solution, ground_truth, None, 0))
    assert found.error is None, found.error
    return found.value


@pytest.mark.parametrize(("ground_truth", "solution"), RIGHT)
def test_right(ground_truth: object, solution: str) -> None:
    assert value(ground_truth, solution) == 1.0


@pytest.mark.parametrize(("ground_truth", "solution"), WRONG)
def test_wrong(ground_truth: object, solution: str) -> None:
    assert value(ground_truth, solution) == 0.0


def test_strict_wants_a_mark() -> None:
    assert value("7", "so the answer is 7.", strict=True) == 0.0
    assert value("7", "#### 7", strict=True) == 1.0
