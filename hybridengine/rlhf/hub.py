"""hub: models and datasets of the Hugging Face hub by their ids, as directories of its cache.

    org/name            the main branch; org/name@REVISION: a branch, tag or commit
    org/name:PATTERN    of a dataset, the files that match: openai/gsm8k:main/train-*.parquet

What the cache lacks is fetched; without a network, or with HF_HUB_OFFLINE=1, the cache is all there
is. Which one it is, and how to log in, is set as everywhere: HF_HOME, HF_HUB_CACHE, HF_TOKEN.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from hybridengine._core import UsageError

_NAME = r"[A-Za-z0-9][\w.-]*"
_ID = re.compile(rf"(?P<name>{_NAME}/{_NAME})(@(?P<revision>[\w./-]+))?(:(?P<pattern>.+))?")

# Of a model: its config, weights, and whatever its tokenizer has. Not pickles, and not the copies
# of the weights in other formats that some repositories have beside them.
_MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.tiktoken", "*.jinja"]
_NOT_OF_A_MODEL = ["*/*", "consolidated*"]
_DATA_FILES = ["*.parquet", "*.jsonl", "*.jsonl.gz"]  # what a directory is read for


@dataclass(frozen=True)
class HubId:
    name: str
    revision: str | None
    pattern: str | None

    @staticmethod
    def parse(text: str) -> HubId | None:
        """None for what cannot be one, such as a path with more or fewer parts."""
        match = _ID.fullmatch(text)
        return None if match is None else HubId(match["name"], match["revision"], match["pattern"])

    def __str__(self) -> str:
        return self.name + (f"@{self.revision}" if self.revision else "")


@functools.cache
def model_snapshot(model: HubId) -> Path:
    """The directory of a model or a tokenizer. Throws UsageError that names id and cache where it
    cannot be had."""
    return _snapshot(model, "model", _MODEL_FILES, _NOT_OF_A_MODEL)


@functools.cache
def dataset_snapshot(dataset: HubId) -> Path:
    """The directory of a dataset, with the files of its pattern at least; throws as
    model_snapshot()."""
    pattern = dataset.pattern
    files = _DATA_FILES if pattern is None else [pattern, f"{pattern.rstrip('/')}/*"]
    return _snapshot(dataset, "dataset", files, [])


def _snapshot(repository: HubId, kind: str, files: list[str], without: list[str]) -> Path:
    from huggingface_hub import constants, snapshot_download

    ask = functools.partial(
        snapshot_download,
        repository.name,
        repo_type=kind,
        revision=repository.revision,
        allow_patterns=files,
        ignore_patterns=without,
        cache_dir=constants.HF_HUB_CACHE,
    )
    try:
        return Path(ask())
    except Exception as error:  # of whatever library the hub's client speaks through
        reason = _reason(error)
    try:
        return Path(ask(local_files_only=True))
    except (OSError, ValueError):
        hint = "" if kind == "model" else " --repo-type dataset"
        raise UsageError(
            f"{str(repository)!r} is no file or directory here, and the {kind} of that name on the "
            f"Hugging Face hub cannot be had: {reason}. The cache {constants.HF_HUB_CACHE} has no "
            "copy of it. Mend the name, or fetch it where there is a network: hf download "
            f"{repository.name}{hint}."
        ) from None


def _reason(error: Exception) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return "it is gated: ask for access on its page, and log in with hf auth login"
    if isinstance(error, RepositoryNotFoundError):
        return "the hub has none of that name, or one that needs a login (hf auth login)"
    if isinstance(error, RevisionNotFoundError):
        return "it has no such revision"
    if isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
        return "the hub is not reached"
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
