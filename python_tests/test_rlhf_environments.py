"""Episodes of a scripted policy and environments, and the built-in environments by themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from generation_models import engine, make_model, prompts
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridengine import UsageError
from hybridengine.rlhf.algorithms import token_rewards
from hybridengine.rlhf.config.records import ENVIRONMENTS, EnvironmentRecord
from hybridengine.rlhf.data.characters import character_tokenizer
from hybridengine.rlhf.data.samples import Sample
from hybridengine.rlhf.environments import (
    Calculator,
    Player,
    Task,
    TowerOfHanoi,
    Turn,
    environment,
)
from hybridengine.rlhf.environments.calculator import evaluate
from hybridengine.rlhf.environments.choosing import Environments
from hybridengine.rlhf.environments.demonstrations import demonstrated
from hybridengine.rlhf.generation import Generation, Request, SamplingParams, generate

pytestmark = pytest.mark.python

_EOS = 2


class Script:
    """An engine that says what `answer` makes of the prompt's text."""

    version, unfinished = 3, 0

    def __init__(self, answer: Any) -> None:
        self._answer, self._waiting = answer, dict[int, Request]()
        self.requests: list[Request] = []
        self._tokenizer = character_tokenizer()

    def submit(self, request: Request) -> int:
        self.requests.append(request)
        self._waiting[len(self.requests)] = request
        return len(self.requests)

    def poll(self, steps: int = 16) -> list[tuple[int, Generation]]:
        number, request = self._waiting.popitem()  # the newest first: order must not matter
        text = self._answer(self._tokenizer.decode(request.prompt))
        ids = self._tokenizer.encode(text) + [_EOS] * (not text.endswith(request.params.stop))
        cut = len(ids) > request.params.max_tokens
        ids = ids[: request.params.max_tokens]
        reason: Any = "length" if cut else "stop"
        return [(number, Generation(ids, [-float(i) for i in ids], [3] * len(ids), reason))]

    def abort(self, numbers: Collection[int] | None = None) -> list[tuple[int, Generation]]:
        self._waiting.clear()
        return []

    def load_weights(self, tensors: Any, version: int) -> None: ...
    def sleep(self) -> None: ...
    def free(self) -> None: ...


class Adder:
    """Answers "+" with a count, until the response has none."""

    stop: Sequence[str] = ("+",)
    counts: Sequence[str] = ("adds", "ends", "others")

    def reset(self, sample: Sample) -> str:
        self._count = int(sample.ground_truth)
        return f"({self._count})"

    def step(self, response: str) -> Turn:
        if not response.endswith("+"):
            return Turn(None, 1.0, {"ends": 1})
        self._count += 1
        return Turn(f"<{self._count}>", -0.25, {"adds": 1})

    def demonstration(self) -> None:
        return None


def _task(text: str, number: int = 0, environment: Any = None, turns: int = 4) -> Task:
    sample = Sample(number, text, None, "5", "here", None, where=f"data:{number}")
    return Task(character_tokenizer().encode(text), number, sample, environment, turns)


def _play(answer: Any, tasks: Sequence[Task], tokens: int = 40, longest: int = 64) -> Any:
    script = Script(answer)
    params = SamplingParams(max_tokens=tokens)
    return Player(script, character_tokenizer(), params, longest).play(tasks), script


def test_turns_alternate_with_observations_that_nobody_trains_on() -> None:
    said = {"p(5)": "a+", "p(5)a+<6>": "bc+", "p(5)a+<6>bc+<7>": "d"}
    (episode,), script = _play(said.__getitem__, [_task("p", environment=Adder())])
    text = "p(5)a+<6>bc+<7>d"
    trained = "____11___111___11"  # the end-of-sequence token too
    assert episode.ids == [*map(ord, text), _EOS]
    assert episode.mask == [place == "1" for place in trained]
    for place, (token, on) in enumerate(zip(episode.ids, episode.mask, strict=True)):
        assert episode.log_probs[place] == (-token if on else 0)
        assert episode.versions[place] == (3 if on else -1)
    rewards = {5: -0.25, 11: -0.25, 16: 1.0}
    assert episode.rewards == [rewards.get(place, 0) for place in range(len(episode.ids))]
    assert (episode.prompt_length, episode.finish_reason, episode.truncated) == (1, "stop", False)
    assert [(e.response, e.observation) for e in episode.exchanges] == [
        ("a+", "<6>"),
        ("bc+", "<7>"),
        ("d", None),
    ]
    assert (episode.response, episode.numbers) == ("d", {"adds": 2, "ends": 1, "others": 0})
    assert [request.drawn for request in script.requests] == [0, 2, 5]
    assert [request.params.max_tokens for request in script.requests] == [37, 32, 26]


@pytest.mark.parametrize(
    ("limits", "reason", "text"),
    [
        ({"turns": 2}, "turns", "p(5)a+<6>a+"),
        ({"tokens": 12}, "length", "p(5)a+<6>a+"),  # an observation leaves no room to answer
        ({"tokens": 9}, "length", "p(5)a+<6>a"),
        ({"longest": 10}, "length", "p(5)a+<6>a"),
        ({"tokens": 4}, "length", "p(5)a"),
    ],
)
def test_episodes_end_at_their_limits(limits: dict[str, int], reason: str, text: str) -> None:
    turns = limits.pop("turns", 9)
    tasks = [_task("p", environment=Adder(), turns=turns)]
    (episode,), _ = _play(lambda _: "a+", tasks, **limits)
    assert "".join(map(chr, episode.ids)) == text
    assert (episode.finish_reason, episode.truncated) == (reason, True)


def test_episodes_are_in_the_order_of_their_tasks() -> None:
    tasks = [_task(text, n, Adder() if n % 2 else None) for n, text in enumerate("pqrst")]
    episodes, _ = _play(lambda text: "x" if len(text) > 4 else "y+", tasks)
    assert [chr(episode.ids[0]) for episode in episodes] == list("pqrst")
    assert [len(episode.exchanges) for episode in episodes] == [1, 2, 1, 2, 1]


def test_an_environment_that_fails_is_named_with_its_sample() -> None:
    class Broken(Adder):
        def step(self, response: str) -> Turn:
            raise KeyError(response)

    with pytest.raises(UsageError, match=r"Broken failed in step\(\) of data:1: KeyError: 'a\+'"):
        _play(lambda _: "a+", [_task("p"), _task("q", 1, Broken())])


def test_without_environments_an_episode_is_a_response() -> None:
    model, given = make_model(), prompts(7)
    params = SamplingParams(max_tokens=12, seed=3)
    tasks = [_task("", number) for number in range(7)]
    tasks = [Task(ids, t.sample_id, t.sample) for ids, t in zip(given, tasks, strict=True)]
    tokenizer: Any = character_tokenizer()
    episodes = Player(engine(model), tokenizer, params, 64).play(tasks)
    for prompt, episode, alone in zip(
        given, episodes, generate(engine(model), given, params, range(7)), strict=True
    ):
        size = len(prompt)
        assert episode.ids == prompt + alone.ids
        assert episode.mask == [False] * size + [True] * len(alone.ids)
        assert episode.log_probs[size:] == pytest.approx(alone.log_probs, abs=1e-9)
        assert episode.finish_reason == alone.finish_reason
        assert not any(episode.rewards)


def test_records_choose_by_the_source_of_a_sample(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("class Echo:\n    def __init__(self, *, word='a'): self.word = word\n")
    records = {
        "sums": EnvironmentRecord(use="calculator", data_sources=["here"], max_turns=3),
        "rest": EnvironmentRecord(use=f"{mine}:Echo", options={"word": "b"}),
    }
    chosen = Environments(records)
    tool, turns = chosen.of(_task("p").sample)
    assert isinstance(tool, Calculator) and turns == 3
    other, turns = chosen.of(Sample(0, "p", None, "", "there", None))
    assert (getattr(other, "word", None), turns) == ("b", 8)
    assert Environments({}).of(_task("p").sample) == (None, 1)
    with pytest.raises(UsageError, match=r"'calculator' has no option 'demos'.*demonstrations"):
        Environments({"sums": EnvironmentRecord(use="calculator", options={"demos": 1})})
    assert set(environment.names()) == set(ENVIRONMENTS)


def test_demonstrations_are_the_episodes_of_who_says_them() -> None:
    sample = Sample(0, "17 + 4 = ", None, "21", "chain_sum", None)
    tokenizer: Any = character_tokenizer()
    prompt = tokenizer.encode(sample.prompt)
    ids, mask = demonstrated(prompt, sample, Calculator(), tokenizer) or ([], [])
    said = iter(["[17 + 4]", "21"])
    (episode,), _ = _play(lambda _: next(said), [Task(prompt, 0, sample, Calculator(), 4)])
    assert (ids, mask) == (episode.ids, episode.mask)
    assert demonstrated(prompt, sample, Calculator(demonstrations=0), tokenizer) is None


def test_rewards_of_turns_stay_where_they_were_earned() -> None:
    mask = torch.tensor([[0, 1, 1, 0, 1], [0, 1, 0, 0, 0]], dtype=torch.bool)
    turns = torch.tensor([[0, 0, 0.5, 0, 2], [0, 0, 0, 9.0, 0]]).double()  # 9: behind the mask
    found = token_rewards(torch.tensor([3.0, 1.0]).double(), mask, turns=turns)
    assert found.tolist() == [[0, 0, 0.5, 0, 2.5], [0, 1, 0, 0, 0]]


_EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=6,
)


@given(_EXPRESSIONS)
@settings(max_examples=100, deadline=None)
def test_the_calculator_is_exact(expression: str) -> None:
    numbers = "".join(
        f"Fraction({part})" if part.isdigit() else part for part in _split(expression)
    )
    try:
        value: Fraction = eval(numbers, {"Fraction": Fraction})
    except ZeroDivisionError:
        assert evaluate(expression) is None
        return
    found = evaluate(expression)
    assert found is not None
    if value.denominator == 1:
        assert found == str(value)
    else:
        assert abs(Fraction(found) - value) <= abs(value) * Fraction(1, 10**10) + Fraction(
            1, 10**12
        )


def _split(expression: str) -> list[str]:
    import re

    return re.findall(r"\d+|.", expression)


@pytest.mark.parametrize(
    "text", ["", "1 +", "2 ** 9", "a", "print(1)", "1 if 2 else 3", "1,2", "(" * 150, "9" * 201]
)
def test_the_calculator_takes_arithmetic_only(text: str) -> None:
    assert evaluate(text) is None


def test_the_calculator_answers_calls_and_ends_with_an_answer() -> None:
    tool = Calculator(demonstrations=0.5)
    shown = []
    for number in range(6):
        sample = Sample(number, "17 + 4 - 9 = ", None, "12", "chain_sum", None)
        assert tool.reset(sample) == ""
        shown.append(tool.demonstration())
    assert shown.count(None) == 3 and ("[17 + 4 - 9]", "12") in shown
    assert tool.step("so [17 + 4 - 9]") == Turn("12 ", 0.0, {"calls": 1})
    assert tool.step("[17 + ]").observation == "error "
    assert tool.step("12") == Turn(None)


def test_the_towers_of_a_generator_are_solved_by_its_answers_and_by_nothing_shorter() -> None:
    from reasoning_gym.factory import create_dataset  # type: ignore[import-untyped]

    for entry in create_dataset("tower_of_hanoi", size=4, seed=2, max_disks=4):
        game = TowerOfHanoi()
        sample = Sample(0, entry["question"], None, entry["answer"], "tower_of_hanoi", entry)
        pegs = game.reset(sample)
        moves = game.demonstration()
        assert len(moves) == entry["metadata"]["solution_length"]
        assert game.step("1>1\n") == Turn(pegs, -0.1, {"moves": 1, "illegal_moves": 1})
        assert game.step("hello").observation == pegs
        turns = [game.step(move) for move in moves]
        assert [turn.reward for turn in turns] == [0] * (len(moves) - 1) + [1]
        assert [turn.observation is None for turn in turns] == [False] * (len(moves) - 1) + [True]
    with pytest.raises(UsageError, match=r"data\.gym\.name=tower_of_hanoi"):
        TowerOfHanoi().reset(Sample(0, "", None, "", "here", None))
