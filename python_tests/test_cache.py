"""The folder of what is kept, with and without a home directory."""

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from hybridengine import cache
from hybridengine.collective import link_model
from hybridengine.models import smollm2

pytestmark = pytest.mark.python


@pytest.fixture(autouse=True)
def homeless(monkeypatch, tmp_path):
    """A user without a home and without a name, as containers have them; TMPDIR is tmp_path."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache._stand_in.cache_clear()
    link_model.forget()
    yield
    cache._stand_in.cache_clear()
    link_model.forget()


def unwritable(monkeypatch, folder: Path) -> None:
    """Root may write everywhere: a file in its way stops it too."""
    folder.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def test_without_a_home_nothing_is_measured_and_the_default_holds(capfd):
    assert cache.cache_directory() is None and link_model.path() is None
    assert link_model.pick_bucket("shm", 2) == link_model.DEFAULT_BUCKET_BYTES
    with pytest.raises(OSError, match=r"no home directory\. Set HOME or XDG_CACHE_HOME"):
        link_model.save("shm", 2, link_model.fit(8, {4: 1.0}))
    assert capfd.readouterr().err == ""


def test_a_home_that_cannot_be_read_is_no_hindrance(monkeypatch, tmp_path):
    unwritable(monkeypatch, tmp_path / "home")
    assert link_model.pick_bucket("shm", 2) == link_model.DEFAULT_BUCKET_BYTES


@pytest.mark.parametrize("with_home", [False, True])
def test_what_must_be_kept_goes_to_tmpdir_with_one_warning(monkeypatch, tmp_path, capfd, with_home):
    if with_home:
        unwritable(monkeypatch, tmp_path / "home")
    monkeypatch.setattr(smollm2, "_installed_file", lambda: tmp_path / "source")
    monkeypatch.setattr(smollm2, "convert", lambda source, directory: directory.mkdir())
    found = [smollm2.smollm2_directory() for _ in range(2)]
    folder = tmp_path / f"hybridengine-{os.getuid()}"
    assert found == [folder / f"{smollm2.NAME}-{smollm2._REVISION}"] * 2
    assert folder.stat().st_mode & 0o777 == 0o700
    warnings = capfd.readouterr().err
    assert warnings.count("what is kept goes to") == 1, warnings
    assert ("cannot be written" if with_home else "no home directory") in warnings


def test_a_folder_of_somebody_else_is_not_trusted(tmp_path):
    (tmp_path / f"hybridengine-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is not this user's folder"):
        cache.writable_directory()


def test_weights_in_a_home_that_is_only_read_are_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "hybridengine" / f"{smollm2.NAME}-{smollm2._REVISION}"
    kept.mkdir(parents=True)
    monkeypatch.setattr(cache.os, "access", lambda *_: False)
    assert smollm2.smollm2_directory() == kept
