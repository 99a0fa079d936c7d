"""What a run says and leaves at its end, however it ends; without Ray."""

from pathlib import Path

import pytest

from hybridengine.rlhf.trainer.artifacts import Summary
from hybridengine.rlhf.trainer.loop import Ending
from hybridengine.rlhf.trainer.run import last_line

pytestmark = pytest.mark.python

_SUMMARY = Summary(
    reward_first=0.25,
    reward_last=0.9674,
    reshard_received_over_bound=1.0,
    steps=60,
    seconds=147.2,
    reshard_share=0.1,
    controller_share=0.1,
    tokens_per_second=None,
)


def test_the_last_line_says_what_was_learned_and_what_is_left() -> None:
    line = last_line(_SUMMARY, Path("runs/a"), Ending(60, 60), save_hf=True)
    assert line == (
        "reward 0.250 -> 0.967 in 60 steps, 147 s, reshard 1.00 of the bound; "
        "runs/a/reward.png, summary.json, hf/"
    )


def test_the_last_line_says_why_a_run_ended_early_and_names_only_what_is_there() -> None:
    short = Summary(0.25, 0.25, None, 1, 60.4, 0.1, 0.1, None)
    line = last_line(short, Path("runs/a"), Ending(1, 100000, 60.0), save_hf=False)
    assert line == (
        "reward 0.250 -> 0.250 in 1 step, 60 s, trainer.time_limit_s=60 ended it before step "
        "100000; runs/a/reward.png, summary.json"
    )
