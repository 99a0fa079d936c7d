"""What is shown of the config: help, page and examples; and the commands that show it."""

import importlib
import re
import sys
import types
from pathlib import Path

import pytest

from hybridengine.command import cli
from hybridengine.rlhf import algorithms
from hybridengine.rlhf.config.describe import config_markdown
from hybridengine.rlhf.config.keys import RECORD, entries, records, sections
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.presets import PRESETS
from hybridengine.rlhf.logging import SINKS
from hybridengine.rlhf.rewards import reward

pytestmark = pytest.mark.python

_ROOT = Path(__file__).parents[1]
_EXAMPLES = sorted((_ROOT / "examples").glob("*.yaml"))


@pytest.fixture
def run(capsys):
    """Runs a command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(list(arguments))
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def trained(monkeypatch):
    """Replaces what trains: the configs it was given, and the exit code it answers with."""
    given = []
    for name in ("RAY_COLOR_PREFIX", "RAY_DEDUP_LOGS"):
        monkeypatch.setenv(name, "0")  # the command sets them for its process, which is this one

    def answer(config, command, dry=False):
        given.append(config)
        return 0

    for name, function in (("run", "train"), ("reward_run", "train_reward")):
        module = types.ModuleType(f"hybridengine.rlhf.trainer.{name}")
        setattr(module, function, answer)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return given


def test_the_page_is_in_step(run):
    code, out, _ = run("train", "--config-markdown")
    assert code == 0
    assert out == config_markdown()
    assert out == (_ROOT / "docs" / "config.md").read_text(), (
        "run `hybridengine train --config-markdown > docs/config.md`"
    )


def test_the_page_has_every_key_once_in_tables_of_four_columns():
    page = config_markdown()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] != []
    assert sorted(row.split("`")[1] for row in rows) == sorted(entries())
    assert all(row.count("|") == 5 for row in rows)


def test_every_key_and_section_has_a_line_of_help():
    helps = [*(entry.help for entry in entries().values()), *sections().values()]
    assert all(text and "\n" not in text and not text.endswith(".") for text in helps)


def test_the_keys_are_those_of_the_models():
    def leaves(value, prefix):
        for name, inner in value.items():
            if f"{prefix}{name}" in sections():
                yield from leaves(inner, f"{prefix}{name}.")
            else:
                yield prefix + name

    found = set(leaves(load_config([]).model_dump(), ""))
    assert found - set(records()) == {name for name in entries() if f".{RECORD}." not in name}


def test_choices_are_the_names_of_formulas_rewards_and_sinks():
    for key, registry, extra in (
        ("algorithm.advantage", algorithms.advantage, set()),
        ("algorithm.policy_loss", algorithms.policy_loss, set()),
        ("algorithm.loss_aggregation", algorithms.aggregation, set()),
        ("algorithm.group_filter", algorithms.group_filter, set()),
        ("reward.functions", reward, set()),
        ("algorithm.value_loss", algorithms.value_loss, set()),
        ("algorithm.kl.estimator", algorithms.kl_estimator, set()),
        ("algorithm.kl.controller", algorithms.kl_controller, set()),
        ("algorithm.rollout_correction", algorithms.rollout_correction, {"none"}),
    ):
        assert set(entries()[key].choices) == set(registry.names()) | extra
    assert set(entries()["trainer.loggers"].choices) == set(SINKS)
    assert set(entries()["preset"].choices) == set(PRESETS)


@pytest.mark.parametrize("path", _EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_whole_and_comments_every_key(path):
    load_config([str(path)])
    for line in path.read_text().splitlines():
        is_section = re.fullmatch(r" *\w+:", line) is not None
        is_value = re.match(r" *\w+: ", line) is not None
        assert is_section or not is_value or " # " in line or "options:" in line


def test_there_are_examples():
    assert {path.stem for path in _EXAMPLES} >= {"grpo_smollm2", "ppo_math", "offline"}


def test_train_gets_the_config(run, trained):
    code, out, err = run("train", "actor.lr=0.5", "seed=3")
    assert (code, out, err) == (0, "", "")
    assert trained == [load_config(["actor.lr=0.5", "seed=3"])]


def test_train_reward_gets_the_config(run, trained, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    code, _, err = run("train-reward", f"model.path={tmp_path}", "data.train_files=[pairs.jsonl]")
    assert (code, err) == (0, "")
    (config,) = trained
    assert (config.model.path, config.preset) == (str(tmp_path), "none")


@pytest.mark.parametrize("command", ["train", "train-reward"])
def test_a_config_that_is_refused_ends_with_2_and_starts_nothing(run, trained, command):
    code, out, err = run(command, "train_batch_size=64")
    assert (code, out) == (2, "")
    assert err == (
        "error: train_batch_size is no key (on the command line). Use data.train_batch_size.\n"
    )
    assert trained == []


def test_the_exit_code_is_that_of_the_run(run, trained, monkeypatch):
    module = importlib.import_module("hybridengine.rlhf.trainer.run")
    monkeypatch.setattr(module, "train", lambda config, command, dry: 3)
    assert run("train")[0] == 3

    def interrupted(config, command, dry):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "train", interrupted)
    assert run("train")[0] == 130


def test_a_missing_package_is_named(run, trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "math_verify", None)
    code, _, err = run("train")
    assert (code, trained) == (2, [])
    assert err == ("error: the trainer needs ray, math-verify. pip install 'hybridengine[rlhf]'\n")
    assert run("train", "--print-config")[0] == 0


def test_help_shows_examples_and_keys(run):
    code, out, _ = run("train", "--help")
    assert code == 0
    keys = re.findall(
        r"[a-z_]+\.[a-z_.]*[a-z]", out.split("Keys used most:")[1].split("A config")[0]
    )
    assert {"actor.lr", "rollout.n", "trainer.steps"} <= set(keys)
    assert set(keys) - {"a.parquet", "b.jsonl", "e.g"} <= set(entries())
    for example in re.findall(r"examples/\S+", out):
        assert (_ROOT / example).is_file()
    assert "'[a.parquet, b.jsonl]'" in out
