"""Reward functions, how a config names them, and what each makes of good and bad responses."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hybridengine import UsageError
from hybridengine.rlhf.config.schema import Reward
from hybridengine.rlhf.rewards import Item, Scorer, check, load_function, reward

pytestmark = pytest.mark.python


def score(config: Reward, solution: str, ground_truth: Any = None, extra: Any = None) -> Any:
    source = "source" if extra is None else extra["metadata"]["source_dataset"]
    return Scorer.from_config(config).score([Item(source, solution, ground_truth, extra, 7)])[0]


def one(name: str, **options: Any) -> Reward:
    return Reward(functions=[name], options={name: options} if options else {})


def write(tmp_path: Path, text: str, name: str = "mine.py") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_every_reward_has_its_name() -> None:
    assert reward.names() == ("exact_match", "format", "gym", "length", "math")


def test_the_documentation_has_every_reward_with_its_options() -> None:
    page = (Path(__file__).parents[1] / "docs" / "rewards.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", page, re.MULTILINE))
    documented = {name: re.findall(r"`(\w+)`", options) for name, options in rows.items()}
    assert documented == {name: list(reward.options(name)) for name in documented}
    assert set(documented) == set(reward.names())


@pytest.mark.parametrize(
    ("options", "solution", "ground_truth", "expected"),
    [
        ({}, " 42\n", "42", 1.0),
        ({}, "42", 42, 1.0),
        ({}, "the answer is 42", "42", 0.0),
        ({}, "Paris", "paris", 0.0),
        ({"ignore_case": True}, "PARIS", " paris", 1.0),
        ({}, "b", ["a", "b"], 1.0),
        ({"final_answer": ["<answer>(.*?)</answer>"]}, "x <answer> 42\n</answer> y", "42", 1.0),
        ({"final_answer": ["<answer>(.*?)</answer>"]}, "42", "42", 0.0),
        ({"final_answer": [r"is (\d+)"]}, "it is 41, no, it is 42.", "42", 1.0),
        ({"final_answer": ["never", r"\d+"]}, "41 42", "42", 1.0),
    ],
)
def test_exact_match(
    options: dict[str, Any], solution: str, ground_truth: Any, expected: float
) -> None:
    assert score(one("exact_match", **options), solution, ground_truth).value == expected


@pytest.mark.parametrize(
    ("options", "characters", "expected"),
    [
        ({"target": 100}, 100, 1.0),
        ({"target": 100}, 50, 0.5),
        ({"target": 100, "width": 10}, 109, 0.1),
        ({"target": 100}, 500, 0.0),
        ({"limit": 100}, 100, 0.0),
        ({"limit": 100}, 125, -0.25),
        ({"limit": 100, "width": 10}, 1000, -1.0),
        ({"target": 100, "limit": 80}, 100, 0.8),
    ],
)
def test_length(options: dict[str, Any], characters: int, expected: float) -> None:
    assert math.isclose(score(one("length", **options), "x" * characters).value, expected)


def test_format() -> None:
    config = one("format", pattern="<think>.*</think>.+", otherwise=-1.0)
    assert score(config, " <think>a\nb</think>\n4\n").value == 1.0
    assert score(config, "<think>a</think>").value == -1.0
    with pytest.raises(UsageError, match=r"'format' needs option 'pattern'. Set reward\.options"):
        check(Reward(functions=["format"]))
    assert "no regular expression" in score(one("format", pattern="("), "x").error


def test_the_gym_scores_with_the_scorer_of_the_generator() -> None:
    import reasoning_gym

    entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=5)[0]
    assert score(one("gym"), entry["answer"], extra=entry).value == 1.0
    assert score(one("gym"), "x", extra=entry).value == 0.0
    tagged = one("gym", final_answer=["<a>(.*)</a>"])
    assert score(tagged, f"<a>{entry['answer']}</a>", extra=entry).value == 1.0
    countdown = reasoning_gym.create_dataset("countdown", size=1, seed=5)[0]  # many answers
    assert score(one("gym"), countdown["metadata"]["expression"], extra=countdown).value == 1.0
    assert "extra is no entry of reasoning-gym" in score(one("gym"), "1").error
    unknown = {**entry, "metadata": {"source_dataset": "chain_sun"}}
    assert "Use the nearest, 'chain_sum'" in score(one("gym"), "1", extra=unknown).error


def test_rewards_are_added_with_weights_and_all_parts_are_shown(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "def mine(data_source, solution_str, ground_truth, extra_info=None, *, bonus=0.5):\n"
        "    return {'score': bonus, 'words': len(solution_str.split()), 'note': 'text'}\n",
    )
    config = Reward(
        functions=["exact_match", "length"],
        weights=[2.0, 0.5],
        function=f"{path}:mine",
        function_weight=10.0,
        options={"length": {"target": 1}, "mine": {"bonus": 0.25}},
    )
    found = score(config, "4", "4")
    assert found.parts == {"exact_match": 1.0, "length": 1.0, "mine": 0.25, "mine/words": 1.0}
    assert found.value == 2.0 * 1.0 + 0.5 * 1.0 + 10.0 * 0.25
    assert found.error is None


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return float('nan')", r"returned nan, not a finite number\."),
        ("return float('inf')", r"returned inf, not a finite number\."),
        ("return None", r"returned None, not a number\."),
        ("return '1'", r"returned '1', not a finite number\."),
        ("return {'points': 1}", r"returned a dict without 'score': it has points\."),
        ("return {'score': [1]}", r"returned \[1\], not a number\."),
        ("return 1 / 0", r"raised ZeroDivisionError at .*mine\.py:2: division by zero"),
        ("raise SystemExit(3)", r"raised SystemExit at .*mine\.py:2: 3"),
        (r"raise ValueError('\x1b[31m' + solution_str)", r"raised .*: \\x1b\[31m4"),
    ],
)
def test_what_a_bad_reward_does_names_sample_and_function(
    tmp_path: Path, body: str, error: str
) -> None:
    path = write(
        tmp_path, f"def f(data_source, solution_str, ground_truth, extra_info):\n    {body}\n"
    )
    found = score(
        Reward(functions=["length"], function=f"{path}:f", options={"length": {"limit": 9}}), "4"
    )
    assert (found.value, found.parts) == (0.0, {})
    expected = r"sample 7 \(data_source 'source'\): reward 'f' "
    assert re.fullmatch(expected + error, found.error), found.error


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (one("length", tarket=3), "'length' has no option 'tarket'.*the nearest, 'target'"),
        (Reward(options={"length": {}}), "reward.options has 'length', which is no reward of this"),
        (Reward(options={"exact_match": 3}), r"reward\.options\.exact_match is 3\. Give options"),
        (Reward(function="mine.py"), "'mine.py' is not of the form path.py:name"),
        (Reward(function="/nowhere.py:f"), "there is no file '/nowhere.py'"),
        (Reward(function="/nowhere.py:math", functions=["math"]), "both have a reward 'math'"),
    ],
)
def test_a_config_is_refused_before_anything_starts(config: Reward, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        check(config)


def test_a_config_without_functions_is_that_of_a_reward_model() -> None:
    check(Reward(functions=[]))
    assert score(Reward(functions=[]), "x").value == 0.0


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        ("def score(data_source, solution_str, ground_truth, extra_info): ...", "scores",
         r"has no 'scores': it has score\. Use the nearest, 'score'"),
        ("def none(): ...\ndef length(): ...", "nosuch",
         r"has no 'nosuch': it has none, length\. Use one of these\."),
        ("score = 3", "nosuch", r"it has no function\. Define nosuch there\."),
        ("score = 3", "score", "'score' of .* is a int, not a function"),
        ("def score(solution): ...", "score", r"\(solution\) of .* cannot be called with data_"),
        ("def score(data_source, solution_str, ground_truth, extra_info, more): ...", "score",
         "missing a required argument: 'more'"),
        ("def score(data_source, solution_str, ground_truth, extra_info):\n    yield 1.0", "score",
         "score of .* is a generator: .* Write return in place of yield"),
        ("async def score(data_source, solution_str, ground_truth, extra_info):\n    yield 1.0",
         "score", "is a generator"),
        ("class A:\n    def __call__(self, data_source, solution_str, ground_truth, extra_info):\n"
         "        yield 1.0\nscore = A()", "score", "is a generator"),
        ("score = dict.fromkeys", "score", r"cannot be called with|does not say which arguments"),
        ("score = max", "score", "does not say which arguments it takes"),
        ("def score(:", "score", r"mine\.py:1: "),
        ("\nimport nothing_of_this_name", "score", r"mine\.py:2: importing it raised ModuleNot"),
        ("import sys\nsys.exit(1)", "score", r"mine\.py:2: importing it raised SystemExit: 1"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_used(tmp_path: Path, text: str, name: str, error: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=error):
        load_function(f"{path}:{name}")


_SIGNATURE = "(data_source, solution_str, ground_truth, extra_info=None)"


@pytest.mark.parametrize(
    "text",
    [
        f"def score{_SIGNATURE}:\n    return True\n",
        f"def score{_SIGNATURE}:\n    return 1\n",
        f"import numpy\ndef score{_SIGNATURE}:\n    return numpy.float32(1)\n",
        f"import numpy\ndef score{_SIGNATURE}:\n    return numpy.array(True)\n",
        f"import torch\ndef score{_SIGNATURE}:\n    return torch.tensor(1.0)\n",
        f"from fractions import Fraction\ndef score{_SIGNATURE}:\n    return Fraction(1)\n",
        f"async def score{_SIGNATURE}:\n    return 1.0\n",
        f"class A:\n    async def __call__(self, {_SIGNATURE[1:]}:\n        return 1\n"
        "score = A()\n",
        f"import functools\nasync def base({_SIGNATURE[1:-1]}, *, k):\n    return {{'score': k}}\n"
        "score = functools.partial(base, k=1)\n",
        f"import asyncio\nasync def one():\n    return 1\n"
        f"def score{_SIGNATURE}:\n    return asyncio.run(one())\n",
        "def score(**arguments):\n    return float('solution_str' in arguments)\n",
    ],
)
def test_what_counts_as_a_number(tmp_path: Path, text: str) -> None:
    config = Reward(functions=[], function=f"{write(tmp_path, text)}:score")
    found = score(config, "4")
    assert (found.value, found.error) == (1.0, None)
    assert type(found.value) is float


def test_async_rewards_of_a_process_share_a_loop(tmp_path: Path) -> None:
    """What a client keeps open is bound to the loop in which it was opened."""
    path = write(
        tmp_path,
        "import asyncio\nlock = asyncio.Lock()\n"
        f"async def score{_SIGNATURE}:\n"
        "    async with lock:\n        await asyncio.gather(asyncio.sleep(0), wait(lock))\n"
        "    return 1.0\n"
        "async def wait(lock):\n    waiting = asyncio.ensure_future(lock.acquire())\n"
        "    await asyncio.sleep(0)\n    waiting.cancel()\n",
    )
    scorer = Scorer.from_config(Reward(functions=[], function=f"{path}:score"))
    found = scorer.score([Item("d", "s", None, None, sample=i) for i in range(3)])
    assert [(each.value, each.error) for each in found] == [(1.0, None)] * 3


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("numpy.array([1.0])", r"array\(\[1\.\]\)"),
        ("torch.tensor([1.0])", r"tensor\(\[1\.\]\)"),
        ("(1.0, 'fine')", r"\(1\.0, 'fine'\)"),
        ("1j", "1j"),
    ],
)
def test_what_does_not(tmp_path: Path, value: str, shown: str) -> None:
    text = f"import numpy, torch\ndef score{_SIGNATURE}:\n    return {value}\n"
    found = score(Reward(functions=[], function=f"{write(tmp_path, text)}:score"), "4")
    assert re.search(f"reward 'score' returned {shown}, not a number", found.error), found.error


def test_errors_say_where_a_sample_was_read(tmp_path: Path) -> None:
    path = write(tmp_path, f"def score{_SIGNATURE}: ...\n")
    scorer = Scorer.from_config(Reward(functions=[], function=f"{path}:score"))
    (found,) = scorer.score([Item("sums", "4", "4", None, sample=7, where="sums.jsonl:3")])
    assert found.error == (
        "sums.jsonl:3 (data_source 'sums'): reward 'score' returned None, not a number."
    )


def test_a_function_of_a_file_with_the_name_of_a_module(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "import json\n"
        "def f(data_source, solution_str, ground_truth, extra_info=None, **more):\n"
        "    return json.loads(solution_str)\n",
        name="json.py",
    )
    config = Reward(functions=[], function=f"{path}:f")
    assert score(config, "3").value == 3.0


def test_a_library_that_is_not_installed_is_said_before_anything_starts(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "LIBRARIES = ('nothing_of_this_name',)\n"
        "def f(data_source, solution_str, ground_truth, extra_info=None): ...\n",
    )
    with pytest.raises(UsageError, match="needs the module nothing_of_this_name, which is not"):
        check(Reward(function=f"{path}:f"))


def test_a_missing_ground_truth_is_an_error_and_not_a_miss() -> None:
    for name in ("exact_match", "math"):
        assert "there is no ground truth" in score(one(name), "None").error


def test_importing_rewards_and_data_needs_no_heavy_library() -> None:
    heavy = ("torch", "ray", "transformers", "peft", "datasets", "wandb", "tensorboard",
             "reasoning_gym", "math_verify", "omegaconf", "pyarrow", "sympy")  # fmt: skip
    code = (
        "import sys, hybridengine.rlhf.rewards, hybridengine.rlhf.data\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
