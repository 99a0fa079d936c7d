"""The rules of the source tree: which folder may include which, sizes, names, links.

They are checked here because each is easy to break in one line and hard to notice later.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.static

_ROOT = Path(__file__).parents[1]
_CSRC = _ROOT / "csrc"
_PACKAGE = _ROOT / "hybridengine"

_MAX_FILE_LINES = 400
_MAX_FUNCTION_LINES = 60

# Which folders of csrc each folder may include, besides itself.
_MAY_INCLUDE = {
    "base": set(),
    "layout": {"base"},
    "plan": {"base", "layout"},
    "schedule": {"base", "layout", "plan"},
    "device": {"base"},
    "transport": {"base", "device"},
    "comm": {"base", "device", "transport"},
    "engine": {"base", "layout", "plan", "schedule", "device", "transport", "comm"},
    "collective": {"base", "layout", "plan", "schedule", "device", "transport", "comm", "engine"},
}
_MAY_INCLUDE["bindings"] = set(_MAY_INCLUDE)

# Made by the build; only the bindings show what the build found.
_GENERATED = {"build_facts.h": {"bindings"}}

# Files of the core package that import torch, each with its reason; others take what they get.
_IMPORTS_TORCH = {
    "turns.py": "gives a torch Future to those who ask for one",
    "comm.py": "meets through the store of torch.distributed when a process group exists",
    "launch.py": "local ranks and torchrun's environment",
    "layouts/held.py": "reads modules, and dicts of tensors",
    "tensors.py": "makes tensors, and knows where they lie",
    "two_step/optimizers.py": "optimizers are torch's, and so are their parameters",
}
# Packages built on top of the core; there torch is at home.
_ABOVE_THE_CORE = {"integrations", "rlhf"}

# The rooms of the Python package from the ground up: each imports only those before it.
_FLOORS = [
    *("lazy", "wording", "options", "cache", "checkpoint", "overlap", "tensors"),
    *("processes", "turns", "rendezvous", "comm", "agreement", "launch"),
    *("layouts", "mapping", "models", "resharding", "collective", "two_step"),
    *("rlhf", "_bench", "command"),
]

_BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}

# What a user asked to see goes to stdout; everything else is a log and goes to stderr.
_PRINTS_RESULTS = {"cli.py", "streams.py"}


def _sources(folder: Path, *suffixes: str) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes)


def _relative(path: Path) -> str:
    return str(path.relative_to(_ROOT))


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def _breach(folder: str, included: str) -> str | None:
    """Why a file of `folder` may not include `included`, or None when it may."""
    if included in _GENERATED:
        return None if folder in _GENERATED[included] else "is made by the build"
    target = included.split("/")[0]
    if "/" not in included:
        return "is not written as folder/file.h"
    if target not in _MAY_INCLUDE:
        return "lies in no folder of the core"
    if target != folder and target not in _MAY_INCLUDE[folder]:
        return f"lies in {target}/, which {folder}/ may not see"
    return None


def test_includes_keep_to_the_folder_rules() -> None:
    breaches = []
    for path in _sources(_CSRC, ".h", ".cc", ".cu"):
        folder = path.relative_to(_CSRC).parts[0]
        for included in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE):
            reason = _breach(folder, included)
            if reason is not None:
                breaches.append(f"{_relative(path)}: {included} {reason}")
            elif included not in _GENERATED and not (_CSRC / included).is_file():
                breaches.append(f"{_relative(path)}: {included} does not exist")
    assert breaches == []


@pytest.mark.parametrize(
    ("folder", "included", "allowed"),
    [
        ("base", "base/span.h", True),
        ("base", "layout/box.h", False),
        ("layout", "plan/plan.h", False),
        ("plan", "layout/box.h", True),
        ("device", "layout/box.h", False),
        ("device", "plan/plan.h", False),
        ("transport", "layout/rule.h", False),
        ("transport", "device/copy.h", True),
        ("comm", "engine/execution.h", False),
        ("comm", "schedule/schedule.h", False),
        ("engine", "bindings/bindings.h", False),
        ("engine", "box.h", False),
        ("plan", "build_facts.h", False),
        ("bindings", "build_facts.h", True),
        ("engine", "torch/all.h", False),
    ],
)
def test_the_folder_rules_themselves(folder: str, included: str, allowed: bool) -> None:
    assert (_breach(folder, included) is None) == allowed


_OWN_NAMES = re.compile(
    r"^(?:class|struct|enum(?: class)?) (\w+)(?!.*;$)|^(?:inline )?constexpr [^=({]*\b(k[A-Z]\w*)"
    r"|^(?!using|template|static|constexpr|class|struct|enum)(\w[\w:<>,*& ]*\([^;]*)$",
    re.MULTILINE,
)


def _names(text: str) -> set[str]:
    """Types, constants and functions that a text defines."""
    return {next(filter(None, found)) for found in _OWN_NAMES.findall(_without_comments(text))}


def test_files_that_are_compiled_together_have_different_names() -> None:
    """Only a build from scratch compiles the files of a folder together: see he_unite_folders."""
    apart = re.search(r"he_unite_folders\(\w+ APART (.*)\)", (_ROOT / "CMakeLists.txt").read_text())
    assert apart is not None
    seen: dict[tuple[Path, str], Path] = {}
    twice = []
    for path in _sources(_CSRC, ".h", ".cc"):
        if any(
            part in apart[1].split()
            for part in map(_relative, (path, path.parent, path.parents[1]))
        ):
            continue
        own = r"^namespace \{\n(.*?)^\}  // namespace$" if path.suffix == ".cc" else "(.*)"
        for name in _names("".join(re.findall(own, path.read_text(), re.MULTILINE | re.DOTALL))):
            if seen.setdefault((path.parent, name), path) != path:
                twice.append(
                    f"{name} of {_relative(path)} is also in {seen[path.parent, name].name}"
                )
    assert twice == []


def test_no_header_of_torch_in_the_core() -> None:
    found = [
        _relative(path)
        for path in _sources(_CSRC, ".h", ".cc", ".cu")
        if re.search(r"#\s*include\s*<(torch|ATen|c10)/", path.read_text())
    ]
    assert found == []


def test_the_core_has_only_known_folders_and_suffixes() -> None:
    assert {path.name for path in _CSRC.iterdir() if path.is_dir()} <= set(_MAY_INCLUDE)
    odd = [path for path in _CSRC.rglob("*") if path.is_file()]
    odd = [_relative(path) for path in odd if path.suffix not in {".h", ".cc", ".cu"}]
    assert odd == []


def test_headers_open_with_a_comment_and_are_read_once() -> None:
    faults = []
    for path in _sources(_CSRC, ".h"):
        text = path.read_text()
        if not text.startswith("// "):
            faults.append(f"{_relative(path)} does not open with a comment that says what it is")
        if "\n#pragma once\n" not in text:
            faults.append(f"{_relative(path)} has no #pragma once")
    assert faults == []


def test_files_are_short() -> None:
    long_files = []
    for folder, suffixes in (
        (_CSRC, (".h", ".cc", ".cu")),
        (_PACKAGE, (".py",)),
        (_ROOT / "bench", (".py",)),
        (_ROOT / "python_tests", (".py",)),
        (_ROOT / "cuda_tests", (".py", ".cc", ".cu")),
    ):
        for path in _sources(folder, *suffixes):
            lines = len(path.read_text().splitlines())
            if lines > _MAX_FILE_LINES:
                long_files.append(f"{_relative(path)}: {lines} lines")
    assert long_files == []


def test_functions_are_short() -> None:
    long_functions = []
    for path in _sources(_PACKAGE, ".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > _MAX_FUNCTION_LINES:
                    long_functions.append(f"{_relative(path)}: {node.name} has {lines} lines")
    assert long_functions == []


def test_no_file_is_named_for_leftovers() -> None:
    folders = (_CSRC, _PACKAGE, _ROOT / "python_tests", _ROOT / "cuda_tests")
    found = [
        _relative(path)
        for folder in folders
        for path in folder.rglob("*")
        if path.stem in _BANNED_NAMES
    ]
    assert found == []


def _imported_modules(node: ast.AST) -> Iterator[str]:
    """Modules imported anywhere below `node`, but for `if TYPE_CHECKING:`, which never runs."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    if isinstance(node, ast.ImportFrom):
        if node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        return
    never_runs = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    for child in node.orelse if never_runs else ast.iter_child_nodes(node):
        yield from _imported_modules(child)


def _imports_torch(source: str) -> bool:
    return any(name.split(".")[0] == "torch" for name in _imported_modules(ast.parse(source)))


def test_files_that_import_torch() -> None:
    found = {
        str(path.relative_to(_PACKAGE))
        for path in _sources(_PACKAGE, ".py")
        if path.relative_to(_PACKAGE).parts[0] not in _ABOVE_THE_CORE
        and _imports_torch(path.read_text())
    }
    assert found == set(_IMPORTS_TORCH)


def _room(path: Path) -> str:
    """The folder or file of the package that `path` lies in."""
    return path.relative_to(_PACKAGE).with_suffix("").parts[0]


def _not_below(room: str, source: str) -> list[str]:
    """Rooms that a file of `room` imports although they are not below it."""
    below = {*_FLOORS[: _FLOORS.index(room)], room, "_core", "_cuda"}
    modules = [name.split(".") for name in _imported_modules(ast.parse(source))]
    ours = {parts[1] for parts in modules if parts[0] == "hybridengine" and len(parts) > 1}
    return sorted(ours - below)


def test_rooms_import_only_what_is_below_them() -> None:
    found = []
    for path in _sources(_PACKAGE, ".py"):
        if _room(path) in ("__init__", "__main__", *_ABOVE_THE_CORE, "_bench"):
            continue
        assert _room(path) in _FLOORS, f"{_relative(path)} lies on no floor: say on which"
        found += [
            f"{_relative(path)}: {room}" for room in _not_below(_room(path), path.read_text())
        ]
    assert found == []


def test_contributing_maps_every_room() -> None:
    text = (_ROOT / "CONTRIBUTING.md").read_text().split("## Where is ...?")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    rooms = [room for cell in cells for room in re.findall(r"`(\w+)/?`", cell)]
    assert sorted(rooms) == sorted(_FLOORS)


@pytest.mark.parametrize(
    ("room", "source", "expected"),
    [
        ("comm", "from hybridengine.layouts.spec import Spec", ["layouts"]),
        ("comm", "def f():\n    from hybridengine import layouts", ["layouts"]),
        ("layouts", "import hybridengine.tensors as memory", []),
        ("layouts", "from hybridengine import _core\nfrom hybridengine.layouts import spec", []),
        ("models", "if TYPE_CHECKING:\n    from hybridengine.command import cli", []),
    ],
)
def test_the_search_for_rooms_above_itself(room: str, source: str, expected: list[str]) -> None:
    assert _not_below(room, source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch", True),
        ("def f():\n    from torch.distributed import TCPStore", True),
        ("if TYPE_CHECKING:\n    import torch", False),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import torch", True),
        ("import torchlike", False),
        ("from . import torch", False),
    ],
)
def test_the_search_for_torch_itself(source: str, expected: bool) -> None:
    assert _imports_torch(source) == expected


def test_nothing_logs_to_stdout() -> None:
    found = []
    for path in _sources(_CSRC, ".h", ".cc", ".cu"):
        if re.search(
            r"std::cout|\bstdout\b|\bputs\(|\bprintf\(", _without_comments(path.read_text())
        ):
            found.append(_relative(path))
    for path in _sources(_PACKAGE, ".py"):
        if path.name in _PRINTS_RESULTS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            prints = isinstance(node, ast.Name) and node.id == "print"
            writes = isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.stdout"
            if prints or writes:
                found.append(f"{_relative(path)}:{node.lineno}")
    assert found == []


def _documents() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=_ROOT, text=True, capture_output=True)
    if listed.returncode == 0:
        return [_ROOT / line for line in listed.stdout.splitlines()]
    return [*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md")]


def _anchors(document: Path) -> set[str]:
    """The anchors that a Markdown viewer gives to the headings of `document`."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+\s+(.*?)\s*$", text, re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def _broken_links(document: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists():
            yield f"{document.name}: {target} does not exist"
        elif anchor and path.suffix == ".md" and anchor not in _anchors(path):
            yield f"{document.name}: {target} names no heading"


def test_links_of_the_documentation_resolve() -> None:
    documents = _documents()
    assert documents
    assert [broken for document in documents for broken in _broken_links(document)] == []


def test_files_that_the_documentation_names_exist() -> None:
    folders = "csrc|hybridengine|python_tests|cuda_tests|bench|cmake|examples|docs"
    missing = [
        f"{document.name}: {name}"
        for document in _documents()
        for name in re.findall(rf"`((?:{folders})/[\w./]+\.\w+)`", document.read_text())
        if not (_ROOT / name).exists()
    ]
    assert missing == []


def test_the_link_check_itself(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("# One two\n[x](#one-two) [y](#three) [z](b.md) [w](https://a.b/c)\n")
    assert list(_broken_links(document)) == [
        "a.md: #three names no heading",
        "a.md: b.md does not exist",
    ]
