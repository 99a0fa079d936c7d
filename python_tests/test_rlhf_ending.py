"""What a run says and leaves at its end, however it ends; without Ray."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from hybridengine import UsageError
from hybridengine.command import cli, farewell
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import Counts
from hybridengine.rlhf.trainer import report
from hybridengine.rlhf.trainer.artifacts import FitSummary, Summary
from hybridengine.rlhf.trainer.loop import Ending

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
    reward_errors=0,
)


def _said(summary: Summary, ending: Ending, tmp_path: Path, width: int) -> list[str]:
    out = io.StringIO()
    report.conclude(Console(file=out, width=width), summary, [], tmp_path, str(ending))
    return out.getvalue().replace(str(tmp_path), "runs/a").splitlines()


def test_the_last_lines_say_what_was_learned_and_what_is_left(tmp_path: Path) -> None:
    for name in ("reward.png", "summary.json", "unknown"):
        (tmp_path / name).write_text("something")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    assert _said(_SUMMARY, Ending(60, 60), tmp_path, 300) == [
        "reward 0.250 -> 0.967 in 60 steps, 147 s, reshard 1.00 of the bound",
        "all steps are done",
        "runs/a/reward.png    the curve",
        "runs/a/summary.json  the numbers of the run",
        "runs/a/hf            the model, for from_pretrained",
    ]


def test_the_last_lines_say_why_a_run_ended_early_and_break_no_path(tmp_path: Path) -> None:
    (tmp_path / "reward.png").write_text("something")
    short = Summary(0.25, 0.25, None, 1, 60.4, 0.1, 0.1, None, 1)
    assert _said(short, Ending(1, 100000, 60.0), tmp_path, 30) == [
        "reward 0.250 -> 0.250 in 1",
        "  step, 60 s, 1 reward failed",
        "trainer.time_limit_s=60 ended",
        "  it before step 100000",
        "runs/a/reward.png",
    ]


def test_the_first_lines_say_what_was_kept() -> None:
    out = io.StringIO()
    screen = Console(file=out, width=80)
    config = Config()
    config.trainer.steps = 1
    report.announce(screen, config, ["actor", "critic"], Counts(7, 7, 0, 0), Path("runs/a"))
    config.data.mode, config.preset = "offline", "demo"
    report.announce(screen, config, ["actor"], Counts(1234, 1000, 200, 34), Path("runs/b"))
    assert out.getvalue().splitlines() == [
        "runs/a",
        "gae on 2 ranks (colocate): actor, critic",
        "7 prompts, 1 step",
        "runs/b",
        "preset demo, gae on 2 ranks (colocate): actor",
        "1,000 of 1,234 responses (200 too long, 34 empty), 1 step",
    ]


def test_a_reward_model_says_on_how_many_pairs_it_was_measured(tmp_path: Path) -> None:
    out = io.StringIO()
    screen = Console(file=out, width=80)
    config = Config()
    config.trainer.steps, config.trainer.time_limit_s = 30, 60.0
    report.announce_fit(screen, config, Counts(302, 300, 2, 0), 29, tmp_path)
    report.conclude_fit(screen, FitSummary(0.1234, 0.5, 1, 30, 12.3), tmp_path)
    report.conclude_fit(screen, FitSummary(0.1234, 0.5, 0, 1, 12.3), tmp_path)
    (folder, *lines) = out.getvalue().splitlines()
    assert folder == str(tmp_path)
    assert lines == [
        "reward model on 2 ranks: 300 of 302 pairs (2 too long, 0 empty), 29 of them held",
        "  out, 30 steps, at most 60 s",
        "loss 0.123, 50.0% of 1 held-out pair in the right order, 30 steps, 12 s",
        "all steps are done",
        "loss 0.123, 50.0% of the last steps' pairs in the right order (none is held out:",
        "  data.eval_share), 1 step, 12 s",
        "all steps are done",
    ]


def test_how_to_go_on_is_said_behind_the_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        farewell.leave("checkpoint at step 20; go on with: it")
        raise UsageError("the call was wrong")

    monkeypatch.setattr(cli, "_run_app", fail)
    monkeypatch.setattr(sys, "argv", ["hybridengine", "train"])
    for behind in (["checkpoint at step 20; go on with: it"],) * 2:  # once each
        with pytest.raises(SystemExit) as raised:
            cli.main()
        assert raised.value.code == 2
        assert capfd.readouterr().err.splitlines() == ["error: the call was wrong", *behind]
