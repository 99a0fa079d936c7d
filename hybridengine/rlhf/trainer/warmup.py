"""warmup: a short supervised phase on prompts with their answers, before the first step."""

from __future__ import annotations

from collections.abc import Sequence

from hybridengine._core import UsageError
from hybridengine.rlhf.batch import Batch, masked_rows
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import Encoded, PromptEncoder, PromptLoader
from hybridengine.rlhf.environments.choosing import Environments
from hybridengine.rlhf.environments.demonstrations import demonstrated
from hybridengine.rlhf.trainer.partition import spread
from hybridengine.rlhf.workers import WorkerGroup


def warm_up(
    config: Config, actor: WorkerGroup, encoder: PromptEncoder, train: Sequence[Encoded]
) -> float | None:
    """`warmup.steps` optimizer steps of cross entropy on the answers: what an environment shows, or
    the response of a sample, or its ground truth where that is text. Returns the last loss, None
    without steps."""
    if not config.warmup.steps:
        return None
    environments = Environments(config.environments)
    loader = PromptLoader(len(train), config.warmup.batch_size, config.seed)
    loss: float | None = None
    for _ in range(config.warmup.steps):
        rows = _rows([train[index] for index in loader.next_batch()], encoder, environments)
        parts = spread(rows.lengths.tolist(), actor.num_places)
        loss = actor.supervise([rows.select(part) for part in parts])[0]["loss"]
    actor.end_warm_up()
    return loss


def _rows(chosen: Sequence[Encoded], encoder: PromptEncoder, environments: Environments) -> Batch:
    """Prompts with answers, which are trainable."""
    lessons = []
    answers = encoder.encode_answers(_answers(chosen), [_is_cut(each) for each in chosen])
    for each, answer in zip(chosen, answers, strict=True):
        environment, _ = environments.of(each.sample)
        shown = environment and demonstrated(each.ids, each.sample, environment, encoder.tokenizer)
        plain = each.ids + answer, [False] * len(each.ids) + [True] * len(answer)
        lessons.append(shown or plain)
    return masked_rows(*zip(*lessons, strict=True))


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
