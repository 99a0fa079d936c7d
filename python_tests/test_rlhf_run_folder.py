"""A folder belongs to one run, and nothing of an earlier one moves before the new one stands."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rlhf_small_run import MODEL

from hybridengine import UsageError
from hybridengine.command import farewell
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.folder import RunFolder
from hybridengine.rlhf.trainer.run import train

pytestmark = pytest.mark.python


@pytest.fixture(autouse=True)
def _nothing_is_said_later() -> Any:
    yield
    farewell._lines.clear()


def _config(folder: Path, *overrides: str) -> Config:
    return load_config(["preset=demo", f"run.dir={folder}/runs", *overrides])


def _earlier(folder: Path, name: str = "good") -> Path:
    """A run that is done."""
    path = folder / "runs" / name
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("earlier")
    return path


def _with_checkpoint(run: Path, step: int) -> None:
    checkpoint = run / "checkpoints" / f"step_{step:08d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "controller.json").write_text('{"files": {}}')


def _stands(config: Config) -> Path:
    with RunFolder.claim(config) as folder:
        config = folder.named(config)
        with folder.standing(config, ["train"]):
            (folder.path / "mine").touch()
    return folder.path


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_runs_of_one_second_have_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20300101-000000")
    config = _config(tmp_path)
    with RunFolder.claim(config) as first, RunFolder.claim(config) as second:
        assert first.path.name == "demo-20300101-000000"
        assert second.path.name == "demo-20300101-000000-2"
        with first.standing(config, []), second.standing(config, []):
            pass
    assert _names(tmp_path / "runs") == ["demo-20300101-000000", "demo-20300101-000000-2"]


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    for name in ("run.name=new", "run.name=null"):
        with (
            pytest.raises(UsageError, match="no room"),
            RunFolder.claim(_config(tmp_path / "deep" / "er", name)),
        ):
            assert (tmp_path / "deep" / "er" / "runs").is_dir()
            raise UsageError("no room")
    assert _names(tmp_path) == []


def test_an_earlier_run_stays_until_the_new_one_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = _earlier(tmp_path)
    config = _config(tmp_path, "run.name=good")
    with pytest.raises(UsageError, match="no room"), RunFolder.claim(config):
        raise UsageError("no room")
    assert _names(tmp_path / "runs") == ["good"]
    assert (earlier / "config.yaml").read_text() == "earlier"
    assert capsys.readouterr().err == ""

    assert _stands(config) == earlier
    assert (tmp_path / "runs" / "good.1" / "config.yaml").read_text() == "earlier"
    assert (earlier / "config.yaml").read_text().startswith("preset: demo")
    assert _names(earlier) == [".lock", "config.yaml", "mine"]
    said = capsys.readouterr().err
    assert said == f"hybridengine: the earlier run {earlier} was moved to {earlier}.1\n"
    _stands(config)
    assert _names(tmp_path / "runs") == ["good", "good.1", "good.2"]


def test_the_earlier_run_comes_back_where_the_new_one_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = _earlier(tmp_path)
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name.startswith("."):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(UsageError, match="Input/output error"):
        _stands(_config(tmp_path, "run.name=good"))
    assert _names(tmp_path / "runs") == ["good"]
    assert (earlier / "config.yaml").read_text() == "earlier"


_LIVE = """
import sys, time
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.trainer.folder import RunFolder
config = load_config(sys.argv[1:])
with RunFolder.claim(config) as folder, folder.standing(config, []):
    print("stands", flush=True)
    time.sleep(600)
"""


def test_a_live_run_keeps_its_folder_and_a_killed_one_does_not(tmp_path: Path) -> None:
    arguments = ["preset=demo", f"run.dir={tmp_path}/runs", "run.name=good"]
    live = subprocess.Popen(
        [sys.executable, "-c", _LIVE, *arguments], cwd=tmp_path, stdout=subprocess.PIPE
    )
    try:
        assert live.stdout is not None and live.stdout.readline() == b"stands\n"
        _with_checkpoint(tmp_path / "runs" / "good", 20)
        owner = rf"process {live.pid} on {socket.gethostname()}"
        for overrides in ((), ("run.resume=true",)):
            with pytest.raises(UsageError, match=rf"good belongs to a run that is alive \({owner}"):
                RunFolder.claim(_config(tmp_path, "run.name=good", *overrides))
        assert _names(tmp_path / "runs") == ["good"]
    finally:
        live.kill()
        live.communicate()
    _stands(_config(tmp_path, "run.name=good"))
    assert _names(tmp_path / "runs") == ["good", "good.1"]


def test_where_nothing_can_be_locked_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    _stands(_config(tmp_path, "run.name=a"))
    said = capsys.readouterr().err
    assert "runs/a cannot be locked (No locks available)" in said and "run.name" in said


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_folder_that_cannot_be_made_is_one_line_before_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    for place, reason in (
        (tmp_path / "afile", "Not a directory"),
        (tmp_path / "afile" / "runs", "Not a directory"),
        (Path("/proc/nope"), "No such file or directory"),
        (Path("/proc/self/fd"), "No such file or directory"),
        (tmp_path / ("n" * 300), "File name too long"),
    ):
        facts = [f"model.config={MODEL}", "data.train_files=[/nowhere]"]
        config = load_config(["preset=none", *facts, f"run.dir={place}"])
        with pytest.raises(UsageError, match=rf"run\.dir=.* cannot hold the run: {reason}.* Set"):
            train(config)
    assert _names(tmp_path) == ["afile"]


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, text: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(UsageError, match=r"cannot hold the run: No space left on device\. Set"):
        RunFolder.claim(_config(tmp_path, "run.name=a"))
    assert _names(tmp_path) == []


def test_a_folder_of_something_else_is_refused_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "runs" / "thesis"
    other.mkdir(parents=True)
    (other / "chapter.tex").touch()
    with pytest.raises(UsageError, match="is not empty and holds no run"):
        RunFolder.claim(_config(tmp_path, "run.name=thesis"))
    assert (other / "chapter.tex").exists()
    with RunFolder.claim(_config(tmp_path, "run.name=other")):  # the name is free again
        pass


def test_what_a_killed_start_leaves_is_no_run(tmp_path: Path) -> None:
    left = tmp_path / "runs" / "a"
    (left / ".trial.xyz").mkdir(parents=True)
    (left / ".lock").touch()
    assert _stands(_config(tmp_path, "run.name=a")) == left
    assert _names(tmp_path / "runs") == ["a"]


def test_a_resume_names_the_runs_that_were_moved_aside(tmp_path: Path) -> None:
    _earlier(tmp_path)
    _with_checkpoint(_earlier(tmp_path, "good.1"), 20)
    _earlier(tmp_path, "good.2")
    _with_checkpoint(_earlier(tmp_path, "goodness.1"), 40)
    with pytest.raises(UsageError) as raised:
        RunFolder.claim(_config(tmp_path, "run.name=good", "run.resume=true"))
    words = str(raised.value)
    assert "runs/good/checkpoints has no complete checkpoint" in words
    assert "runs/good.1 has one of step 20: go on there with run.name=good.1." in words
    assert "good.2" not in words and "goodness" not in words
