"""What users of other trainers write, and which of our keys and values the errors name."""

import sys
from pathlib import Path

import pytest

from hybridengine._core import UsageError
from hybridengine.command import cli
from hybridengine.rlhf import command
from hybridengine.rlhf.config.keys import entries
from hybridengine.rlhf.config.loading import load_config, load_pairs_config
from hybridengine.rlhf.config.meanings import other_names

pytestmark = pytest.mark.python


def _error(*arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(arguments)
    return str(caught.value)


# As the documentation of verl, TRL, OpenRLHF and transformers writes them.
_KEYS = {
    "actor.learning_rate": "actor.lr",
    "critic.learning_rate": "critic.lr",
    "learning_rate": "actor.lr",
    "actor_rollout_ref.actor.optim.lr": "actor.lr",
    "critic.optim.lr": "critic.lr",
    "actor_rollout_ref.actor.grad_clip": "actor.optimizer.grad_clip",
    "critic.optim.weight_decay": "critic.optimizer.weight_decay",
    "actor_rollout_ref.ref.fsdp_config.param_offload": "reference.param_offload",
    "actor_rollout_ref.rollout.n": "rollout.n",
    "actor_rollout_ref.rollout.name": "rollout.engine",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "rollout.tp_size",
    "actor.ppo_micro_batch_size_per_gpu": "actor.max_tokens_per_gpu",
    "critic.ppo_micro_batch_size": "critic.max_tokens_per_gpu",
    "actor.kl_loss_coef": "algorithm.kl_coef",
    "actor.use_kl_loss": "algorithm.kl.where",
    "algorithm.adv_estimator": "algorithm.advantage",
    "algorithm.dual_clip_ratio": "algorithm.clip_ratio_c",
    "algorithm.kl_ctrl.type": "algorithm.kl.controller",
    "algorithm.norm_adv_by_std_in_grpo": "algorithm.scale_advantages",
    "custom_reward_function.path": "reward.function",
    "data.val_files": "data.eval_files",
    "data.max_prompt_len": "data.max_prompt_length",
    "data.batch_size": "data.train_batch_size",
    "reward_model.model.path": "reward_model.path",
    "trainer.save_freq": "trainer.save_interval",
    "trainer.test_freq": "trainer.eval_interval",
    "trainer.total_epochs": "trainer.epochs",
    "trainer.total_training_steps": "trainer.steps",
    "trainer.project_name": "wandb.project",
    "trainer.experiment_name": "run.name",
    "trainer.n_gpus_per_node": "trainer.ranks",
    "trainer.logger": "trainer.loggers",
    "num_generations": "rollout.n",
    "max_completion_length": "data.max_response_length",
    "beta": "algorithm.kl_coef",
    "epsilon-high": "algorithm.clip_ratio_high",
    "--prompt_data": "data.train_files",
    "--n_samples_per_prompt": "rollout.n",
    "--generate_max_len": "data.max_response_length",
    "output_dir": "run.dir",
    "+trainer.val_before_train": "trainer.eval_before",
    "actor_rollout_ref.rollout.val_kwargs.n": "evaluation.n",
    "actor_rollout_ref.rollout.val_kwargs.do_sample": "evaluation.temperature",
    "max_steps": "trainer.steps",
    "gradient_checkpointing": "actor.activation_checkpointing",
}


@pytest.mark.parametrize(("name", "ours"), _KEYS.items())
def test_a_key_of_another_trainer_is_answered_with_ours(name, ours):
    error = _error(f"{name}=1")
    assert error.startswith(f"{name} is no key")
    assert error.endswith(f"(on the command line). Use {ours}.")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("trainer.nnodes", "Leave it out: trainer.ranks counts the ranks of all hosts"),
        ("actor.use_dynamic_bsz", "Leave it out: micro-batches always fill up to actor.max"),
        ("logging_steps", "Leave it out: every step is logged."),
    ],
)
def test_a_key_without_counterpart_says_so(name, instead):
    assert f". {instead}" in _error(f"{name}=1")


@pytest.mark.parametrize(
    ("override", "ours"),
    [
        ("algorithm.policy_loss=ppo", "clip"),
        ("algorithm.policy_loss=PPO", "clip"),
        ("algorithm.policy_loss=dual_clip", "clip"),
        ("algorithm.advantage=reinforce_plus_plus", "reinforce++"),
        ("algorithm.kl.estimator=low_var_kl", "k3"),
        ("algorithm.loss_aggregation=token_mean", "token-mean"),
        ("actor.dtype=bf16", "bfloat16"),
        ("actor.strategy=fsdp", "fsdp2"),
        ("rollout.dtype=fp32", "float32"),
        ("trainer.device=gpu", "cuda"),
        ("trainer.loggers=tb", "tensorboard"),
    ],
)
def test_a_value_of_another_trainer_is_answered_with_ours(override, ours):
    assert _error(override).endswith(f"Use {ours!r}, or another of these.")


@pytest.mark.parametrize(
    ("override", "error"),
    [
        (
            "data.mode=onlin",
            "data.mode is 'onlin', not one of online, offline {}. Use the nearest, 'online', or "
            "another of these.",
        ),
        (
            "preset=dem",
            "preset is 'dem', not one of none, demo {}. Use the nearest, 'demo', or another "
            "of these.",
        ),
        (
            "trainer.placement=x",
            "trainer.placement is 'x', not one of colocate, split, standalone, auto {}. Use "
            "one of these.",
        ),
    ],
)
def test_a_word_that_is_no_choice_lists_them(override, error):
    assert _error(override) == error.format("(on the command line)")


def test_where_one_value_is_legal_there_is_no_other():
    assert _error("rollout.engine=vllm").endswith("Use 'builtin'.")


def test_what_is_like_nothing_is_not_guessed():
    assert _error("trainer.placement=elsewhere").endswith("Use one of these.")


def test_the_tables_name_keys_that_there_are_and_none_of_them_otherwise():
    keys, table = entries(), other_names()
    of_rows = [
        {name for who, names in row.items() if who != "differs" for name in names.split()}
        for row in table.keys.values()
    ]
    others = [name for names in of_rows for name in names]
    assert set(table.keys) <= set(keys)
    assert all(
        set(row) <= {"verl", "trl", "openrlhf", "also", "differs"} for row in table.keys.values()
    )
    assert len(others) == len(set(others)) == len(table.ours())
    assert not set(others) & set(keys) and not set(table.absent) & {*keys, *others}
    leaves = {name.rpartition(".")[2] for name in keys}
    assert set(table.values) <= leaves


def test_a_mapping_is_answered_key_by_key_in_a_file_and_in_an_override(tmp_path):
    wrong = "temprature is no key of section rollout"
    path = tmp_path / "x.yaml"
    path.write_text("rollout: {temprature: 1}\n")
    assert _error(str(path)) == f"rollout.{wrong} ({path}:1). Use rollout.temperature."
    assert _error("rollout={temprature: 1}") == (
        f"rollout.{wrong} (on the command line). Use rollout.temperature."
    )
    path.write_text("actor_rollout_ref:\n  rollout:\n    n: 4\n  actor: {optim: {lr: 1}}\n")
    parts = _error(str(path)).split(" Also: ")
    assert [part.rpartition(". ")[2] for part in parts] == ["Use rollout.n.", "Use actor.lr."]
    path.write_text("actro: {lr: 1}\n")
    assert _error(str(path)) == f"actro is no key ({path}:1). Use actor."


def test_a_mapping_for_a_section_sets_its_keys():
    config = load_config(["actor={lr: 0.5, optimizer: {eps: 1e-6}}", "rollout={}"])
    assert (config.actor.lr, config.actor.optimizer.eps) == (0.5, 1e-6)
    assert config.preset == "demo" and config.rollout.max_model_len == 32


def test_a_list_of_keys_says_how_many_more_there_are():
    error = _error("actor.foo=1")
    more = len([key for key in entries().values() if key.section == "actor"]) - 10
    assert error.endswith(
        f" or one of {more} more, which `hybridengine train --print-config` lists."
    )
    assert error.count("actor.") == 11  # the one that was written and ten
    assert "more" not in _error("run.zzz=1")


@pytest.mark.parametrize(
    ("override", "files"),
    [
        ("data.train_files=a.jsonl", ["a.jsonl"]),
        ("data.train_files='a, b.jsonl'", ["a, b.jsonl"]),
        ("data.train_files=[a.jsonl]", ["a.jsonl"]),
    ],
)
def test_one_text_is_a_list_of_it(override, files):
    assert load_config(["model.path=m", override]).data.train_files == files


def test_texts_with_commas_are_written_as_a_list():
    assert _error("model.path=m", "data.train_files=a.jsonl,b.jsonl") == (
        "data.train_files is 'a.jsonl,b.jsonl', one text and not a list (on the command line). Use "
        "data.train_files=[a.jsonl,b.jsonl]."
    )


@pytest.mark.parametrize(
    ("arguments", "preset"),
    [
        (["model.path=m", "data.train_files=[a]"], "none"),
        (["model.config={model_type: qwen2}", "data.train_files=a"], "none"),
        (["model.path=m", "data.gym.name=chain_sum"], "none"),
        (["preset=demo", "model.path=m", "model.config={}"], "demo"),
        (["actor.lr=1"], "demo"),
        (["model.config.hidden_size=32"], "demo"),
    ],
)
def test_a_model_or_data_of_ones_own_are_not_mixed_with_the_demo(arguments, preset):
    assert load_config(arguments).preset == preset


def test_half_of_what_a_run_needs_names_the_other_half():
    assert _error("model.path=m").startswith("there is no data: data.train_files is empty")
    assert _error("data.train_files=a").startswith("there is no model: model.path is null")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["a.jsonl"], "a.jsonl is data, not a config. Write data.train_files=a.jsonl."),
        (["model.path=m", "a.parquet"], "'a.parquet' is data, not KEY=VALUE. Write data.train_fi"),
        (["model.path=m", "/tmp"], "'/tmp' is a directory, not KEY=VALUE. Write model.path=/tmp."),
        (["/tmp"], "cannot read the config /tmp: Is a directory. Write model.path=/tmp for a mod"),
        (["demo"], "cannot read the config demo: No such file or directory. Write preset=demo."),
        (["config=x.yaml"], "config is no key (on the command line). Leave it out: a YAML file g"),
    ],
)
def test_a_word_that_is_no_config_is_answered_with_its_key(arguments, error):
    assert error in _error(*arguments)


def test_pairs_have_no_demo():
    with pytest.raises(UsageError, match=r"the directory of a HF checkpoint\. Also: there are no "):
        load_pairs_config([])


_EXAMPLE = str(Path(__file__).parents[1] / "examples" / "grpo_smollm2.yaml")


def test_every_name_of_the_table_stops_a_run_before_ray_and_names_our_key(monkeypatch, capsys):
    """By the command itself, from the example that is a whole run otherwise."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "hybridengine.rlhf.trainer.run", None)
    monkeypatch.setattr(command, "_require", lambda modules: None)
    for name, ours in other_names().ours().items():
        assert cli.run(["train", _EXAMPLE, f"{name}=1"]) == 2
        assert capsys.readouterr().err.endswith(f"(on the command line). Use {ours}.\n"), name
    for name, instead in other_names().absent.items():
        assert cli.run(["train", _EXAMPLE, f"{name}=1"]) == 2
        assert capsys.readouterr().err.endswith(f"Leave it out: {instead}.\n"), name


def test_every_value_of_the_table_is_answered_with_ours():
    for leaf, values in other_names().values.items():
        key = next(name for name in entries() if name.endswith(f".{leaf}"))
        for ours, names in values.items():
            assert ours in entries()[key].choices
            for name in set(names.split()) - set(entries()[key].choices):
                assert f"Use {ours!r}" in _error(f"{key}='{name}'")


def test_the_page_for_those_who_come_from_elsewhere_is_in_step(capsys):
    assert cli.run(["train", "--migrating-markdown"]) == 0
    page = capsys.readouterr().out
    assert page == (Path(__file__).parents[1] / "docs" / "migrating.md").read_text(), (
        "run `hybridengine train --migrating-markdown > docs/migrating.md`"
    )
    assert all(line.count("|") in (3, 4) for line in page.splitlines() if line.startswith("|"))
