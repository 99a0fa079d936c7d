"""Configs that are refused: each fault with its key, its place and what to write instead."""

import pytest

from hybridengine._core import UsageError
from hybridengine.rlhf.config.loading import load_config, load_pairs_config

pytestmark = pytest.mark.python

_HERE = "(on the command line)"


def _error(*arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def in_file(tmp_path, monkeypatch):
    """The error of a file x.yaml with this text."""

    def call(text: str | bytes, *overrides: str) -> str:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "x.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return _error("x.yaml", *overrides)

    return call


@pytest.mark.parametrize(
    ("override", "error"),
    [
        (
            "train_batch_size=64",
            f"train_batch_size is no key {_HERE}. Use data.train_batch_size.",
        ),
        ("lr=1", f"lr is no key {_HERE}. Use warmup.lr, actor.lr or critic.lr."),
        (
            "data.trainbatch_size=64",
            f"data.trainbatch_size is no key of section data {_HERE}. Use data.train_batch_size.",
        ),
        (
            "actor.optimizer.lr=1",
            f"actor.optimizer.lr is no key of section actor.optimizer {_HERE}. Use actor.lr.",
        ),
        (
            "critic.optimiser.eps=1",
            f"critic.optimiser.eps is no key: there is no section critic.optimiser {_HERE}. Use "
            "critic.optimizer.eps.",
        ),
        (
            "cluster.<<=1",
            f"cluster.<< is no key of section cluster {_HERE}. Use cluster.address, "
            "cluster.placement_timeout_s, cluster.cpus_per_rank or cluster.timeout_s.",
        ),
        (
            "actor.train_batch_sise=1",
            f"actor.train_batch_sise is no key of section actor {_HERE}. Use "
            "data.train_batch_size.",
        ),
        ("+actor.lr=1", f"+actor.lr is no key: there is no section +actor {_HERE}. Use actor.lr."),
        (
            "zzz=1",
            f"zzz is no key {_HERE}. `hybridengine train --print-config` lists all.",
        ),
        (
            "run.zzz=1",
            f"run.zzz is no key of section run {_HERE}. Use run.name, run.dir or run.resume.",
        ),
        (
            "actor.lr.x=1",
            f"actor.lr.x is no key: actor.lr is a number {_HERE}. Set actor.lr itself.",
        ),
        ("rollout=3", f"rollout is a section, not a key {_HERE}. Set its keys, e.g. rollout.n."),
    ],
)
def test_an_unknown_key_names_its_section_and_the_nearest(override, error):
    assert _error(override) == error


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("actor.lr=fast", "actor.lr is 'fast', not a number"),
        ("actor.lr='1e-6'", "actor.lr is '1e-6', not a number"),
        ("actor.lr=true", "actor.lr is true, not a number"),
        ("actor.lr=null", "actor.lr is null, not a number"),
        ("actor.lr=[1]", "actor.lr is [1], not a number"),
        ("seed=1.0", "seed is 1.0, not a whole number"),
        ("trainer.steps=a", "trainer.steps is 'a', not a whole number or null"),
        ("actor.compile=1", "actor.compile is 1, not true or false"),
        ("run.dir={a: 1}", "run.dir is a mapping, not text"),
        ("data.train_files=3", "data.train_files is 3, not a list of texts"),
        ("data.train_files=''", "data.train_files is '', not a list of texts"),
        ("rollout.stop=[a, null]", "rollout.stop is ['a', null], not a list of texts"),
        (
            "actor.optimizer.betas=[0.9, x]",
            "actor.optimizer.betas is [0.9, 'x'], not a list of numbers",
        ),
        (
            "rollout.stop_token_ids=[2, 0.5]",
            "rollout.stop_token_ids is [2, 0.5], not a list of whole numbers",
        ),
        ("model.config=[1]", "model.config is [1], not a mapping"),
        ("model.config=null", "model.config is null, not a mapping"),
        (f"actor.lr={'x' * 70}", f"actor.lr is '{'x' * 59}..., not a number"),
        (f"actor.lr={10**400}", f"actor.lr is 1{'0' * 59}..., not a number"),
    ],
)
def test_another_type_says_which_is_wanted(override, what):
    assert _error(override).startswith(f"{what} {_HERE}. Use ")


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("actor.lr=0", "actor.lr is 0.0, not a number above 0"),
        ("actor.lr=.nan", "actor.lr is nan, not a finite number"),
        ("reward_model.weight=.nan", "reward_model.weight is nan, not a finite number"),
        ("reward.weights=[.inf]", "reward.weights is [inf], not a finite number"),
        ("seed=-1", "seed is -1, not a whole number at least 0"),
        ("trainer.steps=0", "trainer.steps is 0, not a whole number at least 1, or null"),
        ("algorithm.gamma=1.5", "algorithm.gamma is 1.5, not a number from 0 to 1"),
        ("rollout.top_p=1.5", "rollout.top_p is 1.5, not a number above 0 and at most 1"),
        ("algorithm.kl.target=0", "algorithm.kl.target is 0.0, not a number above 0"),
        ("algorithm.kl.horizon=-1", "algorithm.kl.horizon is -1.0, not a number above 0"),
        (
            "algorithm.clip_ratio=2",
            "algorithm.clip_ratio is 2.0, not a number above 0 and at most 1",
        ),
        (
            "algorithm.clip_ratio_c=1",
            "algorithm.clip_ratio_c is 1.0, not a number above 1, or null",
        ),
    ],
)
def test_a_number_out_of_bounds_says_which_hold(override, error):
    assert _error(override).startswith(f"{error} {_HERE}. Use ")


def test_the_example_of_a_mend_is_the_default():
    assert _error("rollout.n=0").endswith("Use a whole number at least 1, e.g. rollout.n=1.")
    assert _error("rollout.stop=3").endswith("Use a list of texts, e.g. rollout.stop=[a, b].")


@pytest.mark.parametrize("argument", ["seed", "=3"])
def test_an_override_without_key_or_value(argument):
    assert argument in _error("actor.lr=1", argument)
    assert "Write seed=VALUE" in _error("seed")
    assert "Write run.name=VALUE" in _error("run.name=")
    assert _error("actor.lr=1", "more.yaml") == (
        "'more.yaml' is no override: it is not KEY=VALUE. A YAML file goes first, and there is one "
        "at most."
    )


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("actor.lr=[1", "actor.lr on the command line, column 3, is not YAML: expected ',' or ']'"),
        ("run.name=\x01", "run.name on the command line is not YAML: unacceptable character"),
        ("model.config={a:2}", "'a:2' has no space after its colon"),
        ("model.config={a: 1, a: 2}", "a is set twice: model.config on the command line. "),
        (
            "model.config={[1]: 2}",
            "model.config on the command line has a list or mapping as a key",
        ),
        ("model.config={a: !!binary YQ==}", "'YQ==' is a bytes"),
        ("model.config=&x {a: *x}", "refers to what it is part of"),
        ("actor.lr=${nope}", "actor.lr cannot be resolved: Interpolation key 'nope' not found"),
        ("actor.lr=${run.dir}", f"actor.lr is 'runs', not a number {_HERE}. "),
        ("actor.lr=${critic.warmup_steps}", "actor.lr is 0.0, not a number above 0"),
        ("run.dir=${", "run.dir cannot be resolved"),
    ],
)
def test_a_value_that_cannot_be_read(override, reason):
    assert reason in _error(override)


def test_a_file_that_cannot_be_read(tmp_path, in_file):
    missing = str(tmp_path / "missing.yaml")
    assert f"cannot read the config {missing}: No such file or directory. " in _error(missing)
    assert f"cannot read the config {tmp_path}: Is a directory. " in _error(str(tmp_path))
    assert in_file(b"run: {name: \xff}") == (
        "cannot read the config x.yaml: byte 12 is not UTF-8. Save it as UTF-8."
    )
    assert in_file("run: {[b]: 2}") == "x.yaml:1 has a list or mapping as a key. Write text there."
    assert in_file("- a\n").startswith("x.yaml holds no keys. ")


def test_faults_of_a_file_have_its_line(in_file):
    assert in_file("# head\nactor:\n  lr: fast\n").startswith(
        "actor.lr is 'fast', not a number (x.yaml:3). Use a number above 0"
    )
    assert in_file("actor:\n  ppo_epoch: 2\n") == (
        "actor.ppo_epoch is no key of section actor (x.yaml:2). Use actor.ppo_epochs."
    )
    assert in_file("\n\nactro: {lr: 1}\n").startswith("actro is no key (x.yaml:3). ")
    assert in_file("data:\n\n  mode: onlin\n") == (
        "data.mode is 'onlin', not one of online, offline (x.yaml:3). Use the nearest, "
        "'online', or another of these."
    )
    assert in_file("rollout: 3\n").startswith("rollout is a section, not a key (x.yaml:1). ")
    assert in_file("algorithm:\n  kl:\n    target: -1\n").startswith(
        "algorithm.kl.target is -1.0, not a number above 0 (x.yaml:3). "
    )
    assert in_file("actor:\n  lr: 1\n critic: 2\n").startswith("x.yaml:3, column 2, is not YAML: ")
    assert in_file("actor:\n\tlr: 1\n").startswith("x.yaml:2, column 1, is not YAML: ")


def test_a_combination_names_the_lines_of_the_file_in_which_its_keys_stand(in_file):
    text = "preset: demo\nrollout:\n  tp_size: 3\ntrainer:\n  ranks: 2\n"
    fault = "rollout.tp_size 3 does not divide trainer.ranks 2. Use a divisor of 2, or another "
    assert in_file(text) == f"{fault}trainer.ranks. See x.yaml:3 and x.yaml:5."
    assert in_file(text, "trainer.ranks=2") == f"{fault}trainer.ranks. See x.yaml:3."
    assert _error("rollout.tp_size=3").endswith("another trainer.ranks.")


def test_a_key_that_occurs_twice(in_file):
    assert in_file("seed: 1\nrun: {name: a}\nseed: 2\n") == (
        "seed is set twice: x.yaml:1 and x.yaml:3. Leave one of them out."
    )
    assert in_file("actor:\n  lr: 1\nactor.lr: 2\n", "preset=demo") == (
        "actor.lr is set twice: x.yaml:2 and x.yaml:3. Leave one of them out."
    )


def test_the_place_is_that_of_the_last_setting(in_file):
    assert f"actor.lr is -2.0, not a number above 0 {_HERE}" in in_file(
        "actor: {lr: -1}", "actor.lr=-2"
    )


def test_all_faults_are_named_the_first_one_first(in_file):
    error = in_file("actor:\n  lr: fast\n  zzz: 1\ndata:\n  mode: x\n", "seed=-1", "foo")
    parts = error.split(" Also: ")
    assert [part.split(" ")[0] for part in parts] == [
        *("actor.lr", "actor.zzz", "data.mode", "seed", "'foo'"),
    ]


# The demo with these changes is impossible, for this reason and with this mend.
_COMBINATIONS = [
    (["model.config={}"], "there is no model: ", "Set model.path"),
    (
        ["preset=demo", "model.path=m"],
        "there are two models: model.path is 'm' ",
        "Set model.config={}",
    ),
    (["data.gym.name=null"], "there is no data: ", "Set one of them."),
    (
        ["preset=demo", "data.train_files=[a]"],
        "there are two sources of data: ",
        "Set data.train_files=[]",
    ),
    (
        ["data.mode=offline", "warmup.steps=0"],
        "data.gym.name is 'chain_sum', but data.mode is offline",
        "Use data.mode=online",
    ),
    (["data.max_prompt_length=30"], "add up to 38, more than", "rollout.max_model_len=38"),
    (["algorithm.overlong_buffer=9"], "algorithm.overlong_buffer is 9, more than", "smaller"),
    (["data.train_batch_size=64"], "actor.ppo_mini_batch_size is 192, more than", "=64 or less"),
    (["actor.strategy=megatron"], "actor.strategy is megatron, and", "Use actor.strategy=fsdp2."),
    (["critic.strategy=megatron"], "critic.strategy is megatron, and", "critic.strategy=fsdp2."),
    (["reward_model.strategy=megatron"], "not there yet", "Use reward_model.strategy=fsdp2."),
    (["reward.weights=[1, 2]"], "reward.weights has 2 numbers for the 1 rewards", "one for each"),
    (["reward.functions=[exact]"], "has 'exact', not one of exact_", "nearest, 'exact_match'"),
    (["reward.function=/nowhere/a.py:f"], "/nowhere/a.py", ""),
    (["trainer.loggers=[jsonl, jsonl]"], "'jsonl' more than once", "Name it once."),
    (["reward.functions=[math, math]"], "reward.functions has 'math' more than once", "once."),
    (["reward.functions=[]"], "there is no reward: ", "Set one of them."),
    (["trainer.loggers=[wandbb]"], "trainer.loggers has 'wandbb', not one of", "nearest, 'wandb'"),
    (["actor.optimizer.betas=[0.9]"], "actor.optimizer.betas is [0.9], not two", "[0.9, 0.999]"),
    (["critic.optimizer.betas=[0.9, 1]"], "critic.optimizer.betas is [0.9, 1.0]", "[0.9, 0.999]"),
    (["rollout.tp_size=3"], "rollout.tp_size 3 does not divide trainer.ranks 2", "divisor of 2"),
    (
        ["rollout.tp_size=2", "trainer.placement=standalone"],
        "rollout.tp_size 2 does not divide trainer.rollout_ranks 1",
        "divisor of 1",
    ),
    (
        ["reward_model.path=r", "reward_model.tp_size=2", "trainer.placement=split"],
        "reward_model.tp_size 2 does not divide trainer.aux_ranks 1",
        "divisor of 1",
    ),
    (["actor.lora.target_modules=[q_proj]"], "lora.enable is false", "Set actor.lora.enable=true."),
    (["actor.lora.enable=true", "actor.lora.target_modules=['']"], "an empty name", "q_proj"),
    (
        ["rollout.min_tokens=50", "algorithm.rollout_correction=token"],
        "rollout.min_tokens is 50, more than data.max_response_length 8",
        "Use fewer",
    ),
    (["run.name=a/b"], "run.name is 'a/b', not the name of a folder", "run.dir"),
    (["run.name=.."], "run.name is '..', not the name of a folder", "run.dir"),
    (["run.resume=true"], "run.resume is true, but run.name is null", "Set run.name"),
]


@pytest.mark.parametrize(("overrides", "what", "mend"), _COMBINATIONS)
def test_an_impossible_combination_has_a_mend(overrides, what, mend):
    error = _error(*overrides)
    assert what in error and mend in error
    assert error.endswith(".") and " Also: " not in error


@pytest.mark.parametrize(
    "overrides",
    [
        ["preset=demo", "model.path=m", "model.config={}"],
        ["data.max_prompt_length=24"],
        ["data.train_batch_size=192"],
        ["reward.weights=[2]"],
        ["reward.functions=[]", "reward_model.path=r"],
        ["reward.functions=[exact_match, length]", "reward.options={length: {target: 100}}"],
        ["rollout.tp_size=2"],
        ["rollout.temperature=0.5"],
        ["actor.lora.enable=true", "actor.lora.target_modules=[q_proj]"],
        ["run.resume=true", "run.name=a"],
    ],
)
def test_the_neighbour_of_an_impossible_combination_is_possible(overrides):
    load_config(overrides)


_OFFLINE = ["preset=none", "model.path=m", "data.train_files=[a]", "data.mode=offline"]


def test_offline_needs_no_groups_but_generates_nothing():
    load_config([*_OFFLINE, "algorithm.advantage=grpo"])
    load_config([*_OFFLINE, "rollout.top_p=0.5"])
    load_config([*_OFFLINE, "rollout.max_model_len=8", "rollout.tp_size=3"])
    error = _error(*_OFFLINE, "warmup.steps=1")
    assert error.startswith("warmup.steps is 1, but data.mode is offline, which has no warm-up")
    error = _error(*_OFFLINE, "algorithm.group_filter=dapo")
    assert error.startswith("algorithm.group_filter is dapo, which samples more, but data.mode")
    error = _error(*_OFFLINE, "algorithm.advantage=remax")
    assert error.startswith("algorithm.advantage is remax, whose baseline is a greedy response")


def test_a_reward_model_needs_files_and_a_model():
    with pytest.raises(UsageError, match=r"data\.gym\.name is 'chain_sum', but a reward model"):
        load_pairs_config(["preset=demo"])
    with pytest.raises(UsageError, match=r"there are no pairs: data\.train_files is empty"):
        load_pairs_config(["model.path=m"])
    with pytest.raises(UsageError, match="there is no model"):
        load_pairs_config(["data.train_files=[a]"])
    config = load_pairs_config(["model.path=m", "data.train_files=[a]", "data.train_batch_size=8"])
    assert config.data.train_batch_size == 8  # that the policy's mini-batches are larger is nothing
