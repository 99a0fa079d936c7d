"""Memory that a rank needs to build actor, reference and rollout, beside the weights that it keeps.

Every rank builds its roles from a checkpoint of random weights of the model's shape, and takes the
weights that generate by one reshard. Its peak is that of anonymous and shared memory (RssAnon +
RssShmem of /proc/self/status), less what it had after its imports; pages of the files are the
system's, which takes them back. `kept` is what its weights and those that generate take.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hybridengine import Communicator
from hybridengine._bench import results
from hybridengine._bench.flags import Options, parse
from hybridengine._bench.index import INDEX
from hybridengine._core import UsageError
from hybridengine.launch import run_local
from hybridengine.models.presets import PRESETS

CASES = {"smollm2-135m": PRESETS["smollm2-135m"]}

_RANKS = 4
_POLL_S = 0.002
_FIELDS = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Prints a line per rank; 1 where a rank's weights are not the checkpoint's, else 0. Throws
    UsageError."""
    options = parse("loading", INDEX["loading"].summary, INDEX["loading"].flags, arguments)
    results.check_path(options.json_path)
    chosen = [name for name in CASES if not options.only or name.startswith(options.only)]
    if not chosen:
        raise UsageError(f"--only names no case. Cases are {', '.join(CASES)}.")
    shared = results.provenance("loading", arguments)
    silent = options.json_path == "-"
    if not silent:
        _print_header(shared)
    rows = [row for name in chosen for row in measure(name, options)]
    if not silent:
        for row in rows:
            _print_row(row)
    if options.json_path is not None:
        results.write(options.json_path, [{**shared, **row} for row in rows])
    return 1 if any(row["nwrong"] for row in rows) else 0


def measure(name: str, options: Options) -> list[dict[str, Any]]:
    """A row for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(CASES[name], Path(folder) / "model")
        world = _RANKS if options.ranks is None else options.ranks
        found = run_local(world, build, folder)
    return [{"case": name, "ranks": world, "rank": rank, **row} for rank, row in enumerate(found)]


def write_checkpoint(facts: dict[str, Any], directory: Path) -> None:
    """Random weights of bfloat16 for a HF config, and a tokenizer."""
    from transformers import AutoConfig

    from hybridengine import Spec
    from hybridengine.checkpoint import write_bfloat16
    from hybridengine.rlhf.data import character_tokenizer

    directory.mkdir()
    character_tokenizer().save_pretrained(directory)
    rest = {name: value for name, value in facts.items() if name != "model_type"}
    AutoConfig.for_model(facts["model_type"], **rest).save_pretrained(directory)
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape, _ in Spec.from_config(facts).tensors:
        drawn = torch.empty(shape, dtype=torch.bfloat16).normal_(0.0, 0.02, generator=generator)
        tensors[name] = drawn.view(torch.uint16).numpy()
    write_bfloat16(directory / "model.safetensors", tensors)


def build(comm: Communicator, folder: str) -> dict[str, Any]:
    """On each rank: `kept_bytes`, `peak_bytes`, `ratio`, `seconds`, and `nwrong`, weights that
    generate and are not the checkpoint's."""
    import torch.distributed as dist

    from hybridengine.rlhf.config.loading import load_config
    from hybridengine.rlhf.roles.policy import ActorRole, ReferenceRole
    from hybridengine.rlhf.roles.rollout import RolloutRole

    config = load_config(
        [
            "preset=none",
            f"model.path={folder}/model",
            "data.gym.name=chain_sum",
            f"trainer.ranks={comm.world}",
        ]
    )
    context = _context(comm, folder)
    began = time.perf_counter()
    with _peak() as peak:
        roles = context.roles
        roles["actor"] = ActorRole(context, config)
        roles["reference"] = ReferenceRole(context, config)
        rollout = roles["rollout"] = RolloutRole(context, config)
        rollout.connect(None)
        rollout.sync(0)
    seconds = time.perf_counter() - began
    kept = sum(
        sum(each.to_local().nbytes for each in module.parameters())
        for module in (roles["actor"].backend.module, roles["reference"].backend.module)
    )
    kept += sum(each.nbytes for each in rollout.weights.values())
    wrong = _num_wrong(Path(folder) / "model", rollout.weights)
    dist.destroy_process_group()
    return {
        "kept_bytes": kept,
        "peak_bytes": peak[0],
        "ratio": peak[0] / kept,
        "seconds": seconds,
        "nwrong": wrong,
    }


def _context(comm: Communicator, folder: str) -> Any:
    """That of a rank of a pool in which all roles live."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from hybridengine.rlhf.workers import RankContext

    store = dist.FileStore(f"{folder}/store", comm.world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.world)
    assert dist.group.WORLD is not None
    return RankContext(
        pool="train",
        rank=comm.rank,
        world=comm.world,
        host="here",
        device=torch.device("cpu"),
        group=dist.group.WORLD,
        mesh=init_device_mesh("cpu", (comm.world,), mesh_dim_names=("dp",)),
        comm=comm,
        store=store,
    )


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Gives a list that holds one number in the end: by how many bytes the memory of this process
    was at most larger than at the beginning, looked at every 2 ms."""
    begun, found, ended = _resident_bytes(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_S):
            found[0] = max(found[0], _resident_bytes() - begun)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()
        found[0] = max(found[0], _resident_bytes() - begun)


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * sum(int(each) for each in _FIELDS.findall(status))


def _num_wrong(directory: Path, tensors: dict[str, torch.Tensor]) -> int:
    """Elements that are not the checkpoint's, converted."""
    from hybridengine.checkpoint import Checkpoint

    checkpoint = Checkpoint(directory)
    pairs = ((each, checkpoint.tensor(name)) for name, each in tensors.items())
    return sum(int((each != stored.to(each.dtype)).sum()) for each, stored in pairs)


def _print_header(shared: dict[str, Any]) -> None:
    sys.stdout.write(
        f"# hybridengine {shared['version']} (commit {shared['commit']}), loading\n"
        f"#{'rank':>9}{'kept':>10}{'peak':>10}{'ratio':>8}{'time':>8}{'#wrong':>8}  case\n"
        f"#{'':>9}{'(MB)':>10}{'(MB)':>10}{'':>8}{'(s)':>8}\n"
    )


def _print_row(row: dict[str, Any]) -> None:
    sys.stdout.write(
        f"{row['rank']:10d}{row['kept_bytes'] / 1e6:10.1f}{row['peak_bytes'] / 1e6:10.1f}"
        f"{row['ratio']:8.2f}{row['seconds']:8.1f}{row['nwrong']:8d}  {row['case']}\n"
    )
    sys.stdout.flush()
