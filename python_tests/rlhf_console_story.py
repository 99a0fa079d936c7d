"""What a run tells the console, from its first line to its last, with numbers of a run that was:
`python -m rlhf_console_story FOLDER`, which makes files that a run leaves there."""

import sys
from pathlib import Path

from hybridengine.command.streams import open_streams
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import Counts
from hybridengine.rlhf.logging.console import ConsoleLines
from hybridengine.rlhf.logging.screen import busy, open_screen
from hybridengine.rlhf.trainer import report
from hybridengine.rlhf.trainer.artifacts import Sample, Summary

STEPS = 24
FIRST_WORD = "rank 0: a word in front"
SECOND_WORD = "rank 1: a word between two steps"
_FIRST = {
    "reward/mean": 0.2552,
    "reward/errors": 0.0,
    "rollout/length": 2.5833,
    "actor/ref_kl": -0.00004,
    "actor/clip_share": 0.1712,
    "actor/entropy": 1.1901,
    "time/tokens_per_second": 42159.4,
    "time/rollout": 0.0231,
    "time/reward": 0.0064,
    "time/update": 0.5489,
    "time/reshard": 0.0013,
    "time/step": 0.7284,
    "reshard/received_bytes": 463616.0,
    "reshard/bound_bytes": 463616.0,
}
_SAMPLES = [
    Sample("7 + 7", "14", "13", "14"),
    Sample("[bold]3 - 7[/bold]", "-4", "-\x1b[31m4\x1b[0m", "-4\n"),
    Sample("多少?" * 20, "e\u0301", "e\u0301", "\u202e\t\r" + "9" * 200),
]


def _metrics(step: int) -> dict[str, float]:
    metrics = dict(_FIRST)
    metrics["reward/mean"] += 0.01 * step
    if step == 3:
        metrics["reward/errors"] = 12.0
        metrics["time/update"] = 123.4
        metrics["actor/ref_kl"] = 12345.678
        metrics["reshard/received_bytes"] = 1.25e9
        metrics["reshard/bound_bytes"] = 1e9
    if step == 4:
        del metrics["actor/ref_kl"]
        metrics["reward/mean"] = float("nan")
        metrics["eval/reward"] = 0.3515625
        metrics["eval/errors"] = 1234.0
    return metrics


def tell(folder: Path) -> None:
    config = Config()
    config.trainer.steps, config.trainer.time_limit_s = STEPS, 170.0
    screen = open_screen()
    roles = ["actor", "reward", "rollout", "reference", "critic"]
    report.announce(screen, config, roles, Counts(10000, 9788, 200, 12), folder)
    with busy(screen, "starting"):
        sys.stderr.write(f"{FIRST_WORD}\n")
    lines = ConsoleLines(STEPS, screen)
    lines.log(0, {"eval/reward": 0.5078125, "eval/errors": 0.0})
    for step in range(1, STEPS + 1):
        lines.log(step, _metrics(step))
        if step == 2:
            sys.stderr.write(f"{SECOND_WORD}\n")
    lines.log(STEPS, {"eval/reward": 0.578125})
    lines.close()
    for name in ("reward.png", "summary.json", "metrics.jsonl"):
        (folder / name).write_text("something")
    (folder / "samples.jsonl").touch()
    (folder / "checkpoints").mkdir()
    summary = Summary(0.2552, 0.4412, 1.0, 1, 26.2, 0.003, 0.2, 42159.4, 12)
    report.conclude(screen, summary, _SAMPLES, folder)


if __name__ == "__main__":
    open_streams()
    tell(Path(sys.argv[1]))
