"""What the end of a run needs is tried before its first step, and an end that fails can be
repeated; without Ray."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rlhf_local_roles
from rlhf_small_run import MODEL, SMALL

from hybridengine import UsageError
from hybridengine.rlhf.config.loading import load_config, load_pairs_config
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import character_tokenizer
from hybridengine.rlhf.trainer.failure import NotExported, RunError, disk_errors, finish
from hybridengine.rlhf.trainer.folder import RunFolder
from hybridengine.rlhf.trainer.rehearsal import rehearse, rehearse_reward
from hybridengine.rlhf.trainer.run import train

pytestmark = pytest.mark.python

_WEIGHTS = 2 * (128 * 24) + 24 + 2 * (4 * 24 * 24 + 3 * 24 + 3 * 24 * 40 + 2 * 24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint."""
    import yaml
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("model")
    facts = yaml.safe_load(MODEL)
    config = AutoConfig.for_model(facts.pop("model_type"), **facts)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def _config(folder: Path, *overrides: str) -> Config:
    return load_config([*SMALL, f"run.dir={folder}/runs", "run.name=a", *overrides])


def _rehearse(config: Config) -> None:
    with RunFolder.claim(config) as folder:
        rehearse(config, character_tokenizer(), folder)
        assert [path.name for path in folder.path.iterdir()] == [".lock"]


@pytest.fixture
def refused(model: Path, tmp_path: Path) -> Iterator[Path]:
    """With a generation config as some checkpoints have it, which transformers does not save."""
    folder = tmp_path / "refused"
    shutil.copytree(model, folder)
    facts = {"do_sample": False, "temperature": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(facts))
    yield folder


def test_a_generation_config_that_is_not_saved_is_named_before_the_run(refused: Path) -> None:
    config = _config(refused.parent, "model.config={}", f"model.path={refused}")
    with pytest.raises(UsageError, match=r"refused cannot be exported.*temperature.*Mend its gen"):
        train(config)  # before any process starts
    assert not (refused.parent / "runs").exists()
    model = ["model.config={}", f"model.path={refused}"]
    _rehearse(_config(refused.parent, *model, "trainer.save_hf=false"))


def test_the_room_on_the_disk_is_compared_with_what_will_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has(free: int, total: int = 10**12) -> None:
        monkeypatch.setattr(
            shutil, "disk_usage", lambda path: SimpleNamespace(total=total, free=free)
        )

    hf_bytes = _WEIGHTS * 8  # float64
    has(hf_bytes)
    _rehearse(_config(tmp_path))
    has(hf_bytes - 1)
    with pytest.raises(
        UsageError, match=r"runs/a has room for .* kB, and the run will write .* hf"
    ):
        _rehearse(_config(tmp_path))
    _rehearse(_config(tmp_path, "trainer.save_hf=false"))
    has(0, total=0)  # a mount that does not tell
    _rehearse(_config(tmp_path))
    # A checkpoint: three times the weights of actor and critic, and the reference. The critic has a
    # head of one number instead of one for each token.
    critic = _WEIGHTS - 128 * 24 + 24
    checkpoint_bytes = (3 * _WEIGHTS + 3 * critic + _WEIGHTS) * 8
    saves = ["trainer.save_interval=5", "trainer.keep_checkpoints=2"]
    has(hf_bytes + 3 * checkpoint_bytes)
    _rehearse(_config(tmp_path, *saves))
    has(hf_bytes + 3 * checkpoint_bytes - 1)
    with pytest.raises(UsageError, match=r"3 checkpoints of .* kB.*trainer\.keep_checkpoints"):
        _rehearse(_config(tmp_path, *saves))
    # A run that is done writes no checkpoint again.
    done = tmp_path / "runs" / "a" / "checkpoints" / "step_00000002"
    done.mkdir(parents=True)
    (done / "controller.json").write_text('{"files": {}}')
    has(hf_bytes)
    config = _config(tmp_path, *saves, "run.resume=true")
    with RunFolder.claim(config) as folder:
        rehearse(config, character_tokenizer(), folder)


def test_a_reward_model_is_rehearsed_too(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [f"model.path={model}", "data.train_files=[x]", f"run.dir={tmp_path}", "run.name=a"]
    config = load_pairs_config(arguments)
    with RunFolder.claim(config) as folder:
        rehearse_reward(config, character_tokenizer(), folder)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=9, free=9))
        with pytest.raises(UsageError, match="has room for 9 B"):
            rehearse_reward(config, character_tokenizer(), folder)


def test_a_disk_that_fails_is_one_line_and_other_errors_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = "cannot be written: No space left on device"
    with pytest.raises(RunError, match=full), disk_errors(tmp_path):
        raise OSError(28, "No space left on device")
    gone = r"No such file or directory \(.*metrics\.jsonl\)"
    with pytest.raises(RunError, match=gone), disk_errors(tmp_path):
        (tmp_path / "gone" / "metrics.jsonl").open("w")
    with pytest.raises(ConnectionResetError), disk_errors(tmp_path):
        raise ConnectionResetError(104, "Connection reset by peer")

    def write() -> None:
        raise OSError(28, "No space left on device", "events")

    with disk_errors(tmp_path):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert capsys.readouterr().err == "hybridengine: No space left on device (events)\n"


def test_every_part_of_the_end_is_done_also_behind_one_that_fails(tmp_path: Path) -> None:
    done: list[str] = []

    def picture() -> None:
        raise OSError(28, "No space left on device", "reward.png")

    def export() -> None:
        raise NotExported("hf could not be written: no room")

    with pytest.raises(NotExported) as raised:
        finish(tmp_path, [picture, export, export, lambda: done.append("summary")])
    assert done == ["summary"]
    assert str(raised.value) == (
        f"{tmp_path} cannot be written: No space left on device (reward.png). Also: hf could not "
        "be written: no room"
    )


def test_a_reward_model_that_cannot_be_exported_is_exported_by_a_resume(tmp_path: Path) -> None:
    from hybridengine.rlhf.data import PromptEncoder
    from hybridengine.rlhf.roles.heads import RewardTrainRole
    from hybridengine.rlhf.trainer.artifacts import FitSummary
    from hybridengine.rlhf.trainer.fit import Fit, fitted
    from hybridengine.rlhf.trainer.pairs import Pairs

    rows = [{"prompt": f"{i}?", "chosen": "yes", "rejected": "no"} for i in range(8)]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [
        f"model.config={MODEL}",
        f"data.train_files=[{data}]",
        "data.train_batch_size=4",
        "trainer.steps=2",
        "trainer.ranks=1",
        "trainer.loggers=[jsonl]",
    ]
    run = tmp_path / "run"
    run.mkdir()
    (run / "hf.partial").touch()  # in the way of what is written there

    def once(*more: str) -> FitSummary:
        config = load_pairs_config([*arguments, *more])
        pairs = Pairs.open(config, PromptEncoder.of(character_tokenizer(), config.data))
        context.roles.clear()
        group: Any = rlhf_local_roles.LocalGroup(RewardTrainRole(context, config))
        return fitted(config, Fit(config, group, pairs, run, time.monotonic()))[0]

    with rlhf_local_roles.one_rank(tmp_path) as context:
        with pytest.raises(NotExported, match=r"hf could not be written.*weights are in the check"):
            once()
        first = json.loads((run / "summary.json").read_text())
        assert first["steps"] == 2 and not (run / "hf").exists()
        (run / "hf.partial").unlink()
        second = once("run.resume=true", "run.name=run")
    assert (run / "hf" / "model.safetensors").is_file()
    assert second.loss == first["loss"] and second.steps == 2
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1 + 2  # an evaluation before
