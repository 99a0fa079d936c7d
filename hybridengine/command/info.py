"""What this installation is and can do here: the facts behind `hybridengine info`.

`collect` gathers them as plain values that can be saved as JSON; `render` shows them. Versions come
from the packages' metadata, nothing is imported for them; no connection is opened and no CUDA
context created.
"""

import importlib
import importlib.metadata
import platform
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from hybridengine import _core

_ENVIRONMENT_HEAD = """# Environment variables

This page is generated: `hybridengine info --environment-markdown > docs/environment.md`.

| name | meaning | legal values | default |
|---|---|---|---|"""

_ENVIRONMENT_FOOT = """
A variable that is set to nothing counts as unset. A value that is not legal is an error that says
what is; nothing falls back to a default silently. `hybridengine info` shows the values in use, and
names that look like ours but are not. Log lines go to stderr with the rank.
"""

_PACKAGES = ("torch", "numpy", "transformers", "vllm", "ray")


def collect() -> dict[str, Any]:
    """Every fact, JSON-ready: python, packages, build, cpu_loops, cuda, transports, environment.

    A value of the environment that does not parse is shown as it is, never raised: `info` is
    what one runs to find out what is wrong.
    """
    build = _core.build_facts()
    return {
        "version": build["version"],
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _package_version(name) for name in _PACKAGES},
        "build": build,
        "cpu_loops": _collect_cpu_loops(),
        "cuda": _collect_cuda(build),
        "transports": _core.transports(),
        "environment": _core.env_table(),
        "unknown_environment": _core.unknown_env_names(),
    }


def render(facts: dict[str, Any], console: Console) -> None:
    """Prints what `collect` returned."""
    console.print(
        f"hybridengine {facts['version']} on Python {facts['python']}, {facts['machine']}"
    )
    console.print(_table("Packages", ("name", "version"), _package_rows(facts["packages"])))
    console.print(_table("Build", ("what", "state", "why"), build_rows(facts)))
    console.print(
        _table("Transports", ("name", "here", "what"), _transport_rows(facts["transports"]))
    )
    console.print(
        _table("Environment", ("name", "value", "meaning"), _variable_rows(facts["environment"]))
    )
    for name in facts["unknown_environment"]:
        console.print(f"{name} is set but nothing reads it. Look for a typing error.", markup=False)


def environment_markdown() -> str:
    """The page about environment variables, from the table that the core reads."""
    rows = [
        f"| `{entry['name']}` | {entry['meaning']} | {entry['legal']} | "
        f"{'`' + entry['default'] + '`' if entry['default'] else 'unset'} |"
        for entry in _core.env_table()
    ]
    return "\n".join([_ENVIRONMENT_HEAD, *rows, _ENVIRONMENT_FOOT])


def build_rows(facts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """One row for each thing that a build can lack: what, its state, why."""
    build, cuda = facts["build"], facts["cuda"]
    nccl_reason = build["nccl_reason"] if build["cuda"] else "CUDA is off in this build"
    rows = [
        ("commit", build["commit"], ""),
        ("compiler", build["compiler"], build["build_type"]),
        ("CPU loops", facts["cpu_loops"]["isa"], facts["cpu_loops"]["reason"]),
        ("CUDA", _on_off(build["cuda"]), build["cuda_reason"]),
        ("NCCL", _on_off(build["cuda"] and build["nccl_header"] != ""), nccl_reason),
        ("RDMA", _on_off(build["rdma_header"] != ""), build["rdma_reason"]),
    ]
    if build["sanitize"]:
        rows.append(("sanitizers", build["sanitize"], ""))
    if build["cuda"]:
        devices = ", ".join(cuda["devices"]) or "none"
        rows.append(("CUDA devices", devices, cuda["reason"]))
        rows.append(("CUDA driver", cuda["driver"] or "none", f"runtime {cuda['runtime']}"))
    return rows


def _collect_cpu_loops() -> dict[str, str]:
    try:
        return {"isa": _core.isa(), "reason": f"usable: {', '.join(_core.usable_isas())}"}
    except _core.UsageError as error:
        return {"isa": "none", "reason": str(error)}


def _collect_cuda(build: dict[str, Any]) -> dict[str, Any]:
    if not build["cuda"]:
        return {"devices": [], "reason": f"CUDA is off in this build: {build['cuda_reason']}"}
    cuda = importlib.import_module("hybridengine._cuda")
    _, reason = cuda.device_count()
    return {
        "devices": cuda.device_names(),
        "reason": reason,
        "runtime": cuda.runtime_version(),
        "driver": cuda.driver_version(),
    }


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _on_off(state: bool) -> str:
    return "on" if state else "off"


def _package_rows(packages: dict[str, str | None]) -> Iterable[tuple[str, ...]]:
    return ((name, version or "not installed") for name, version in packages.items())


def _transport_rows(transports: list[dict[str, Any]]) -> Iterable[tuple[str, ...]]:
    for entry in transports:
        here = "yes" if entry["available"] else f"no: {entry['reason']}"
        yield entry["name"], here, entry["summary"]


def _variable_rows(variables: list[dict[str, Any]]) -> Iterable[tuple[str, ...]]:
    for entry in variables:
        meaning = f"{entry['meaning']} ({entry['legal']}; default {entry['default'] or 'unset'})"
        yield entry["name"], str(entry["value"]) or "(default)", meaning


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    return table


def _plain(text: str) -> str:
    """`text` with rich's markup switched off: reasons may hold square brackets."""
    return text.replace("[", "\\[")
