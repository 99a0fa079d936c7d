"""demonstrations: episodes that an environment shows, for supervised learning."""

from __future__ import annotations

from typing import Any

from hybridengine.rlhf.data.samples import Sample
from hybridengine.rlhf.environments.protocol import Environment


def demonstrated(
    prompt: list[int], sample: Sample, environment: Environment, tokenizer: Any
) -> tuple[list[int], list[bool]] | None:
    """The ids of prompt, responses and observations, and which of them are of responses; None where
    the environment shows nothing for `sample`. A response that no text of the environment ends
    ends with the end-of-sequence token."""
    before = environment.reset(sample)
    responses = environment.demonstration()
    if responses is None:
        return None
    ids, mask = list(prompt), [False] * len(prompt)

    def add(text: str, trained: bool) -> None:
        more = tokenizer.encode(text, add_special_tokens=False) if text else []
        if trained and not text.endswith(tuple(environment.stop)):
            more = [*more, tokenizer.eos_token_id]
        ids.extend(more)
        mask.extend([trained] * len(more))

    add(before, False)
    for response in responses:
        add(response, True)
        observation = environment.step(response).observation
        if observation is None:
            break
        add(observation, False)
    return ids, mask
