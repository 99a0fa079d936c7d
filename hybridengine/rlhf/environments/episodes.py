"""episodes: what a policy and an environment make of a prompt, played on a rollout engine.

An episode without an environment is one response. With one, each response is answered, and the
answer is in front of the next response as tokens that nobody trains on. Knows no trainer: it makes
plain values.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hybridengine._core import UsageError
from hybridengine.rlhf.data.samples import Sample
from hybridengine.rlhf.environments.protocol import Environment, Turn
from hybridengine.rlhf.generation import Generation, Request, RolloutEngine, SamplingParams

FinishReason = Literal["stop", "length", "turns", "abort"]


@dataclass(frozen=True)
class Exchange:
    """A response as text, and what the environment answered; None where it ended there."""

    response: str
    observation: str | None


@dataclass(frozen=True)
class Episode:
    """Lists by token, of the prompt, responses and observations in their order.

    `mask`: what the policy drew. `log_probs` and `versions` are those of Generation, 0 and -1 where
    it drew nothing. `rewards`: those of turns, at the last token of their responses.
    `finish_reason`: "stop", the environment or the end of the only response; "length", no token was
    left; "turns", no turn was left; "abort". `numbers`: the environment's, added up.
    """

    prompt_length: int
    ids: list[int]
    mask: list[bool]
    log_probs: list[float]
    versions: list[int]
    rewards: list[float]
    exchanges: list[Exchange]
    finish_reason: FinishReason
    numbers: dict[str, float]

    @property
    def truncated(self) -> bool:
        """Whether something else than the policy or the environment ended it."""
        return self.finish_reason != "stop"

    @property
    def response(self) -> str:
        """The last response, which holds the answer."""
        return self.exchanges[-1].response


@dataclass(frozen=True)
class Task:
    """An episode that is wanted: the ids of a prompt, the sample that it is of, and who answers how
    many responses at most."""

    prompt: list[int]
    sample_id: int
    sample: Sample
    environment: Environment | None = None
    max_turns: int = 1


class Player:
    """Plays on `engine`, whose responses `params` describes: `max_tokens` counts all tokens behind
    the prompt, observations too. `max_model_len` is the engine's. `tokenizer` makes texts of ids
    and ids of observations."""

    def __init__(
        self, engine: RolloutEngine, tokenizer: Any, params: SamplingParams, max_model_len: int
    ) -> None:
        self._engine, self._tokenizer, self._params = engine, tokenizer, params
        self._max_model_len = max_model_len

    def play(self, tasks: Sequence[Task]) -> list[Episode]:
        """One episode for each task, in their order, on an engine that runs nothing else. Throws
        UsageError that names the sample where an environment fails; nothing is left in the engine
        then."""
        episodes: dict[int, Episode] = {}
        playing: dict[int, tuple[int, _Draft]] = {}  # by number of the request
        try:
            for place, task in enumerate(tasks):
                draft = _Draft(task, list(task.prompt))
                self._observe(draft, _called(task, "reset", task.sample))
                playing[self._submit(draft)] = place, draft
            while playing:
                for number, generation in self._engine.poll():
                    place, draft = playing.pop(number)
                    reason = self._answer(draft, generation)
                    if reason is None:
                        playing[self._submit(draft)] = place, draft
                    else:
                        episodes[place] = draft.episode(reason)
        except BaseException:
            self._engine.abort()
            raise
        return [episodes[place] for place in range(len(tasks))]

    def _submit(self, draft: _Draft) -> int:
        stop = self._params.stop
        if draft.task.environment is not None:
            stop = (*stop, *draft.task.environment.stop)
        left = self._left(draft)
        params = dataclasses.replace(
            self._params,
            stop=stop,
            max_tokens=left,
            min_tokens=min(self._params.min_tokens, left),
        )
        return self._engine.submit(
            Request(list(draft.ids), params, draft.task.sample_id, drawn=sum(draft.mask))
        )

    def _left(self, draft: _Draft) -> int:
        """Tokens that the rest of the episode may have."""
        size = len(draft.ids)
        return min(
            self._params.max_tokens - (size - len(draft.task.prompt)), self._max_model_len - size
        )

    def _answer(self, draft: _Draft, generation: Generation) -> FinishReason | None:
        """Takes a response and what the environment says to it. Returns why the episode is over."""
        draft.respond(generation)
        text = self._tokenizer.decode(generation.ids, skip_special_tokens=True)
        if draft.task.environment is None or generation.finish_reason != "stop":
            draft.exchanges.append(Exchange(text, None))
            return generation.finish_reason
        turn: Turn = _called(draft.task, "step", text)
        draft.exchanges.append(Exchange(text, turn.observation))
        draft.rewards[-1] += turn.reward
        draft.numbers.update(turn.numbers)
        if turn.observation is None:
            return "stop"
        if len(draft.exchanges) == draft.task.max_turns:
            return "turns"
        return None if self._observe(draft, turn.observation) else "length"

    def _observe(self, draft: _Draft, text: str) -> bool:
        """Puts a text in front of the next response. Returns whether that has room for a token;
        where it has none the text is left out."""
        ids = self._tokenizer.encode(text, add_special_tokens=False) if text else []
        fits = len(ids) < self._left(draft)
        if fits:
            draft.observe(ids)
        return fits


@dataclass
class _Draft:
    """An episode as it grows."""

    task: Task
    ids: list[int]
    exchanges: list[Exchange] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        size = len(self.ids)
        self.mask = [False] * size
        self.log_probs, self.rewards = [0.0] * size, [0.0] * size
        self.versions = [-1] * size
        if self.task.environment is not None:
            self.numbers.update(dict.fromkeys(self.task.environment.counts, 0))

    def respond(self, generation: Generation) -> None:
        self.ids += generation.ids
        self.mask += [True] * len(generation.ids)
        self.log_probs += generation.log_probs
        self.versions += generation.versions
        self.rewards += [0.0] * len(generation.ids)

    def observe(self, ids: list[int]) -> None:
        self.ids += ids
        self.mask += [False] * len(ids)
        self.log_probs += [0.0] * len(ids)
        self.versions += [-1] * len(ids)
        self.rewards += [0.0] * len(ids)

    def episode(self, reason: FinishReason) -> Episode:
        return Episode(
            len(self.task.prompt),
            self.ids,
            self.mask,
            self.log_probs,
            self.versions,
            self.rewards,
            self.exchanges,
            reason,
            dict(self.numbers),
        )


def _called(task: Task, method: str, argument: Any) -> Any:
    """What a method of the task's environment returns. Throws UsageError where it raises."""
    if task.environment is None:
        return ""
    try:
        return getattr(task.environment, method)(argument)
    except Exception as error:
        raise UsageError(
            f"environment {type(task.environment).__name__} failed in {method}() of "
            f"{task.sample.name()}: {type(error).__name__}: {error}. Mend it; a tool that fails "
            "says so in its observation."
        ) from error
