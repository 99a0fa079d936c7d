"""Configs: what a file, a preset and overrides give, in which order, and what is written back."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridengine.command import cli
from hybridengine.rlhf.config.describe import annotated_yaml
from hybridengine.rlhf.config.keys import entries
from hybridengine.rlhf.config.loading import (
    load_config,
    load_pairs_config,
    save_config,
)
from hybridengine.rlhf.config.presets import PRESETS
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.config.yaml_text import one_line

pytestmark = pytest.mark.python

_DEMO_MODEL = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}

# The least that makes a config of no preset whole.
_WHOLE = ["preset=none", "model.path=m", "data.train_files=[a.jsonl]"]


def value_at(config: Config, name: str):
    return functools.reduce(getattr, name.split("."), config)


@pytest.fixture
def write(tmp_path):
    """Writes a YAML file and returns its path."""

    def call(text: str) -> str:
        path = tmp_path / "x.yaml"
        path.write_text(text)
        return str(path)

    return call


def test_the_defaults_are_those_the_field_expects():
    config = load_config(_WHOLE)
    assert (config.actor.strategy, config.critic.strategy) == ("auto", "auto")
    assert (config.reward_model.strategy, config.reward_model.tp_size) == ("auto", 1)
    assert config.reward_model.offload is False
    assert (config.data.train_batch_size, config.actor.ppo_epochs) == (512, 4)
    assert (config.algorithm.clip_ratio, config.algorithm.kl_coef) == (0.2, 0.01)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (1024, 512)
    assert config.actor.sequence_packing is True
    rollout = config.rollout
    assert (rollout.max_model_len, rollout.gpu_memory_utilization) == (4096, 0.9)
    assert (rollout.reshard_threshold, config.actor.sync_every) == (0.8, 1)
    assert config.trainer.eval_interval == 1000
    assert (config.actor.lora.rank, config.actor.lora.alpha) == (64, 128.0)


def test_without_arguments_it_is_the_demo():
    config = load_config([])
    assert config.preset == "demo"
    assert config.model.config == _DEMO_MODEL
    assert config.data.gym.name == "chain_sum"
    for name in ("actor.lr", "critic.lr", "warmup.lr", "trainer.steps", "data.train_batch_size"):
        assert value_at(config, name) == PRESETS["demo"][name]
    assert config.run.name is None


def test_with_a_file_there_is_no_preset_unless_one_is_named(write):
    text = "model: {path: m}\ndata: {train_files: [a.jsonl]}\n"
    assert load_config([write(text)]).preset == "none"
    assert load_config([write(text)]).actor.lr == 1e-6
    both = "preset: demo\nactor: {lr: 0.5}\n"
    config = load_config([write(both)])
    assert (config.preset, config.actor.lr, config.critic.lr) == ("demo", 0.5, 1e-3)
    config = load_config([write("actor: {lr: 0.5}\n"), "preset=demo"])
    assert (config.preset, config.actor.lr, config.critic.lr) == ("demo", 0.5, 1e-3)


def test_later_wins_defaults_preset_file_overrides(write):
    path = write("preset: demo\nactor: {lr: 0.5, ppo_epochs: 7}\n")
    config = load_config([path, "actor.lr=0.25", "seed=1", "seed=2"])
    assert config.actor.sync_every == 1  # default
    assert config.data.train_batch_size == PRESETS["demo"]["data.train_batch_size"]
    assert config.actor.ppo_epochs == 7  # file
    assert config.actor.lr == 0.25  # override
    assert config.seed == 2  # the later override


def test_an_empty_file_and_empty_sections_set_nothing(write):
    path = write("actor:\n  # lr: 3\ncritic:\n")
    assert load_config([path, "preset=demo"]) == load_config([])
    assert load_config([write("# nothing\n"), "preset=demo"]) == load_config([])


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("actor.lr=1e-6", "actor.lr", 1e-6),
        ("actor.lr=1E+2", "actor.lr", 100.0),
        ("actor.lr=1", "actor.lr", 1.0),
        ("run.name=ci", "run.name", "ci"),
        ("run.name=007", "run.name", "007"),
        ("run.name=2024-01-01", "run.name", "2024-01-01"),
        ("run.name=1e3", "run.name", "1e3"),
        ("run.name=null", "run.name", None),
        ("run.name='null'", "run.name", "null"),
        ("run.dir=''", "run.dir", ""),
        ("run.dir='???'", "run.dir", "???"),
        ("run.dir=a=b", "run.dir", "a=b"),
        ("trainer.steps=20", "trainer.steps", 20),
        ("trainer.steps=null", "trainer.steps", None),
        ("actor.compile=true", "actor.compile", True),
        ("data.eval_files=[a.parquet,b.jsonl]", "data.eval_files", ["a.parquet", "b.jsonl"]),
        ("rollout.stop=[1, yes, 'a b', \"\\n\"]", "rollout.stop", ["1", "yes", "a b", "\n"]),
        ("actor.optimizer.betas=[0, 0.5]", "actor.optimizer.betas", [0.0, 0.5]),
        ("rollout.engine_options={a: {b: [1, null]}}", "rollout.engine_options", None),
        ("rollout.engine_options.a.b=[1, null]", "rollout.engine_options", None),
        ("critic.lr=${actor.lr}", "critic.lr", PRESETS["demo"]["actor.lr"]),
        (r"run.dir=\${actor.lr}", "run.dir", "${actor.lr}"),
    ],
)
def test_a_value_has_the_type_of_its_key(override, name, value):
    if name == "rollout.engine_options":
        value = {"a": {"b": [1, None]}}
    found = value_at(load_config([override]), name)
    assert (found, type(found)) == (value, type(value))


def test_a_mapping_is_replaced_and_an_entry_of_it_changed(write):
    config = load_config(["data.gym.options={min_terms: 3}", "model.config.hidden_size=32"])
    assert config.data.gym.options == {"min_terms": 3}
    assert config.model.config == {**_DEMO_MODEL, "hidden_size": 32}
    assert load_config([]).model.config == _DEMO_MODEL  # the preset is as it was
    path = write("preset: demo\nmodel:\n  path: m\n  config: {}\n")
    assert load_config([path]).model.config == {}


def test_interpolations_may_name_the_environment(monkeypatch):
    monkeypatch.setenv("RUNS_FOLDER", "/somewhere")
    assert load_config(["run.dir=${oc.env:RUNS_FOLDER}/a"]).run.dir == "/somewhere/a"


def test_a_dump_is_nested_and_whole():
    found = load_config(["rollout.stop=[a]"]).model_dump()
    assert set(found) == set(Config.model_fields)
    assert found["rollout"]["stop"] == ["a"]
    assert found["data"]["gym"]["name"] == "chain_sum"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_sets_keys_to_values_of_their_type(preset):
    values = PRESETS[preset]
    assert set(values) <= set(entries())
    again = load_config(_WHOLE if preset == "none" else [f"preset={preset}"])
    for key, value in values.items():
        assert value_at(again, key) == value
        assert type(value_at(again, key)) is type(value)


def test_pairs_start_from_no_preset():
    config = load_pairs_config(["model.path=m", "data.train_files=[pairs.jsonl]"])
    assert (config.preset, config.data.gym.name) == ("none", None)


# Keys that no combination is about, so that any value within bounds is legal.
_TEXT_KEYS = ("run.dir", "data.prompt_key", "wandb.entity", "model.chat_template")
_MAPPING_KEYS = ("rollout.engine_options", "data.gym.options")
_TEXT = st.text() | st.sampled_from(
    [
        "???",
        "1e-6",
        "null",
        "~",
        "yes",
        "# no comment",
        "a: b",
        "${x}",
        "\\${x}",
        "\\\\${",
        "2024-01-01",
    ]
)
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(_TEXT_KEYS, _TEXT),
        **dict.fromkeys(_MAPPING_KEYS, st.dictionaries(_TEXT, _PLAIN, max_size=3)),
        "rollout.stop": st.lists(_TEXT, max_size=3),
        "actor.lr": st.floats(1e-300, 1e300),
        "reward_model.weight": st.floats(allow_nan=False, allow_infinity=False),
        "reward.function_weight": st.integers(-100, 100).map(float),
        "trainer.time_limit_s": st.none() | st.floats(1e-9, 1e9),
        "trainer.steps": st.none() | st.integers(1, 10**30),
        "actor.compile": st.booleans(),
    },
)


@settings(max_examples=25, deadline=None)
@given(overrides=_OVERRIDES)
def test_what_is_written_is_read_back(tmp_path_factory, overrides):
    arguments = [f"{name}={one_line(value)}" for name, value in overrides.items()]
    config = load_config(arguments)
    for name, value in overrides.items():
        assert value_at(config, name) == value
    path = tmp_path_factory.mktemp("config") / "saved.yaml"
    save_config(config, path)
    assert load_config([str(path)]) == config


@pytest.mark.parametrize("text", ["\x85", "a\u2028b", "a\nb\r", '"\x85: x', "\x85\n"])
def test_ends_of_lines_are_written_in_one_line(text):
    written = one_line({"key": [text]})
    assert len(written.splitlines()) == 1
    assert yaml.safe_load(written) == {"key": [text]}


def test_print_config_is_read_back(capsys, tmp_path):
    assert cli.run(["train", "--print-config", "actor.lr=1e-6", "rollout.stop=['#', a]"]) == 0
    out = capsys.readouterr().out
    path = tmp_path / "printed.yaml"
    path.write_text(out)
    again = load_config([str(path)])
    assert again == load_config(["actor.lr=1e-6", "rollout.stop=['#', a]"])
    assert annotated_yaml(again) == out


def test_a_config_is_read_without_torch_and_ray():
    code = (
        "import sys; from hybridengine.rlhf.config.loading import load_config; load_config([]);"
        "print([name for name in ('torch', 'ray', 'transformers') if name in sys.modules])"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout == "[]\n"
