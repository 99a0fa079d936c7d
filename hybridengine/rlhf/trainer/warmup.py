"""warmup: a short supervised phase on prompts with their answers, before the first step."""

from __future__ import annotations

from collections.abc import Sequence

from hybridengine._core import UsageError
from hybridengine.rlhf.batch import as_rows
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import Encoded, PromptEncoder, PromptLoader
from hybridengine.rlhf.trainer.partition import spread
from hybridengine.rlhf.workers import WorkerGroup


def warm_up(
    config: Config, actor: WorkerGroup, encoder: PromptEncoder, train: Sequence[Encoded]
) -> float | None:
    """`warmup.steps` optimizer steps of cross entropy on the answers: the response of a sample, or
    its ground truth where that is text. Returns the last loss, None without steps."""
    if not config.warmup.steps:
        return None
    answers = _answers(train)
    loader = PromptLoader(len(train), config.warmup.batch_size, config.seed)
    loss: float | None = None
    for _ in range(config.warmup.steps):
        chosen = loader.next_batch()
        rows = as_rows(
            [train[index].ids for index in chosen],
            encoder.encode_answers(
                [answers[index] for index in chosen], [_is_cut(train[index]) for index in chosen]
            ),
        )
        parts = spread(rows.lengths.tolist(), actor.num_places)
        loss = actor.supervise([rows.select(part) for part in parts])[0]["loss"]
    actor.end_warm_up()
    return loss


def check_answers(config: Config, train: Sequence[Encoded]) -> None:
    """Throws UsageError where a run with a warm-up has a sample without an answer. One that resumes
    has had its own."""
    if config.warmup.steps and not config.run.resume:
        _answers(train)


def _is_cut(each: Encoded) -> bool:
    """Whether its answer is a response that nothing ended."""
    return each.sample.response is not None and each.sample.truncated


def _answers(train: Sequence[Encoded]) -> list[str]:
    found = []
    for each in train:
        answer = (
            each.sample.response if each.sample.response is not None else each.sample.ground_truth
        )
        if not isinstance(answer, str):
            raise UsageError(
                f"warmup.steps needs answers: {each.sample.name()} has neither a response nor a "
                "text as ground truth. Set warmup.steps=0."
            )
        found.append(answer)
    return found
