"""Records: keys below names of the user's own, as those of pools and environments."""

import pytest

from hybridengine._core import UsageError
from hybridengine.command import cli
from hybridengine.rlhf.config.describe import annotated_yaml
from hybridengine.rlhf.config.keys import entries
from hybridengine.rlhf.config.loading import load_config, load_pairs_config, save_config
from hybridengine.rlhf.config.records import EnvironmentRecord, Pool

pytestmark = pytest.mark.python

_HERE = "(on the command line)"
_USES = entries()["environments.NAME.use"].accepts
_MAIN = "pools.main={ranks: 2, roles: [actor, rollout, reference, reward]}"
_JUDGE = "pools.judge={ranks: 1, roles: [critic]}"


def _error(*arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(arguments)
    return str(caught.value)


def test_records_are_set_whole_and_key_by_key_and_read_back(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "preset: demo\npools:\n  main:\n    ranks: 2\n"
        "    roles: [actor, rollout, reference, reward]\n  judge: {ranks: 1, roles: [critic]}\n"
        "environments:\n  calc: {use: calculator, options: {digits: 3}}\n"
    )
    config = load_config([str(path), "pools.judge.ranks=3", "environments.calc.options.digits=4"])
    assert config.pools == {
        "main": Pool(ranks=2, roles=["actor", "rollout", "reference", "reward"]),
        "judge": Pool(ranks=3, roles=["critic"]),
    }
    assert config.environments == {
        "calc": EnvironmentRecord(use="calculator", options={"digits": 4}, max_turns=8)
    }
    save_config(config, tmp_path / "saved.yaml")
    again = load_config([str(tmp_path / "saved.yaml")])
    assert again == config and annotated_yaml(again) == annotated_yaml(config)


def test_an_empty_mapping_takes_records_away():
    assert load_config([_MAIN, "pools={}"]).pools == {}
    assert load_config([_MAIN, _JUDGE, "pools.main.ranks=1"]).pools["main"].ranks == 1


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("pools=3", f"pools is a section, not a key {_HERE}. Set its keys, e.g. pools.NAME.ranks."),
        (
            "pools.a=3",
            f"pools.a is a section, not a key {_HERE}. Set its keys, e.g. pools.a.ranks.",
        ),
        (
            "pools.a.rnks=3",
            f"pools.a.rnks is no key of section pools.a {_HERE}. Use pools.a.ranks.",
        ),
        (
            "pools={a: {zzz: 1}}",
            f"pools.a.zzz is no key of section pools.a {_HERE}. Use pools.a.ranks, pools.a.roles, "
            "pools.a.cpus_per_rank, pools.a.gpus_per_rank or pools.a.one_host.",
        ),
        (
            "pools.a.ranks.x=1",
            f"pools.a.ranks.x is no key: pools.a.ranks is a whole number {_HERE}. Set "
            "pools.a.ranks itself.",
        ),
        (
            "environments.a.max_turns=2",
            f"environments.a has no use {_HERE}. Set environments.a.use to {_USES}.",
        ),
        (
            "environments.a={use: calculator, max_turns: 0}",
            f"environments.a.max_turns is 0, not a whole number at least 1 {_HERE}. Use a whole "
            "number at least 1, e.g. environments.a.max_turns=8.",
        ),
        (
            "pools.a={ranks: 1, roles: [rolout]}",
            "pools.a.roles has 'rolout', not one of actor, rollout, reference, reward, critic, "
            f"reward_model {_HERE}. Use the nearest, 'rollout', or another of these.",
        ),
    ],
)
def test_faults_of_a_record_name_it(override, error):
    assert _error(override) == error


def test_a_record_with_nothing_in_it_lacks_what_must_be_given(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("preset: demo\nenvironments:\n  a:\n  b: {}\npools:\n")
    first, second = _error(str(path)).split(" Also: ")
    assert first == f"environments.a has no use ({path}:3). Set environments.a.use to {_USES}."
    assert second == f"environments.b has no use ({path}:4). Set environments.b.use to {_USES}."


def test_a_key_of_a_record_is_known_wherever_keys_are(capsys):
    assert "Write pools.a.ranks=VALUE" in _error("seed=1", "pools.a.ranks")
    assert "Write pools.a.ranks=VALUE" in _error("pools.a.ranks")
    assert cli.run(["train", "--pools.a.ranks", "3"]) == 2
    assert "Write pools.a.ranks=3." in capsys.readouterr().err


def test_faults_of_a_record_have_its_line(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("pools:\n  a:\n    roles: [actor]\n  b:\n    ranks: 0\n    roles: []\n")
    first, second = _error(str(path)).split(" Also: ")
    assert (
        first == f"pools.a has no ranks ({path}:3). Set pools.a.ranks to a whole number at least 1."
    )
    assert second.startswith(f"pools.b.ranks is 0, not a whole number at least 1 ({path}:5). ")


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ([_MAIN], "no pool has the role critic, which the run needs. Add it to pools.NAME.roles."),
        (
            [_MAIN, "pools.judge={ranks: 1, roles: [critic, actor]}"],
            "pools.main.roles and pools.judge.roles have the role actor. Leave it in one of them.",
        ),
        (
            [_MAIN, _JUDGE, "trainer.placement=split"],
            "trainer.placement is split, but pools says which pools there are.",
        ),
        ([_MAIN, _JUDGE, "trainer.aux_ranks=2"], "trainer.aux_ranks is 2, but pools says which"),
        (
            [
                "pools.main={ranks: 2, roles: [actor, rollout, reward]}",
                "pools.judge={ranks: 1, roles: [critic, reference]}",
            ],
            "the role reference is a copy of the actor's shards, but lives in another pool.",
        ),
        (
            [_MAIN, _JUDGE, "rollout.tp_size=4"],
            "rollout.tp_size 4 does not divide pools.main.ranks 2. Use a divisor of 2, or another "
            "pools.main.ranks.",
        ),
        (
            [_MAIN, _JUDGE, "pools.main.gpus_per_rank=1"],
            "pools.main.gpus_per_rank is 1, but weights go to the engine in host memory only.",
        ),
    ],
)
def test_pools_that_cannot_work(overrides, error):
    assert error in _error(*overrides)


def test_a_file_of_ones_own_environment_is_tried_before_a_run_starts():
    error = _error("environments.calc.use=no.py:Calc")
    assert error == "environments.calc.use: there is no file 'no.py'. Mend the path."


def test_environments_are_nothing_to_offline_runs():
    offline = ["preset=none", "model.path=m", "data.train_files=[a]", "data.mode=offline"]
    assert _error(*offline, "environments.a.use=calculator").startswith(
        "environments is set, but data.mode"
    )


def test_records_are_nothing_to_train_reward():
    with pytest.raises(
        UsageError, match="pools is set, but fitting a reward model has one pool, of"
    ):
        load_pairs_config(["model.path=m", "data.train_files=[a]", _MAIN])
