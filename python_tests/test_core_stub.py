"""hybridengine/_core.pyi says what the compiled core has: the same names, with the same signatures.

What the core tells of a function stands in the first line of its docstring; where a type there is
bare (`list`, `object`), the stub may say more.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridengine import _core

pytestmark = pytest.mark.python

_STUB = ast.parse((Path(__file__).parents[1] / "hybridengine" / "_core.pyi").read_text())

# What every class has, or only the interpreter calls.
_NOT_COMPARED = {"__doc__", "__hash__", "__module__", "__repr__", "__str__", "__eq__"}
# Types in the words of the stub. A bare one may stand there with more detail.
_WORDS = (
    (r"hybridengine(::|\._core\.)", ""),
    (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
    (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"),
    (r"collections\.abc\.", ""),
    (r"<[^>]*>", "..."),
)
_BARE = ("list", "tuple", "dict")

Signatures = dict[str, list[tuple[str, ...]]]  # by name: per overload its arguments and its result


def _arguments(function: ast.FunctionDef) -> Iterator[str]:
    """'name: type', '*' before keywords, and ' = ...' behind what may be left out."""
    given = function.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    pairs = [*zip(given.args, defaults, strict=True)]
    stars = [(ast.arg("*" + (given.vararg.arg if given.vararg else "")), None)]
    if given.kwonlyargs or given.vararg:
        pairs += [*stars, *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    for argument, default in pairs:
        if argument.arg != "self":
            kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
            yield f"{argument.arg}{kind}{'' if default is None else ' = ...'}"


def _signature(function: ast.FunctionDef) -> tuple[str, ...]:
    result = ast.unparse(function.returns) if function.returns else ""
    return (*_arguments(function), result)


def _told(doc: str | None) -> list[tuple[str, ...]]:
    """The signatures in a docstring of the core; none where it has none, as of a constructor that
    Python cannot call."""
    text = doc or ""
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    lines = re.findall(r"^(?:\d+\. )?(\w*\(.*\) -> .*)$", text, re.MULTILINE)
    if len(lines) > 1:
        lines = [line for line in lines if "(*args, **kwargs)" not in line]
    functions = (f"def {'' if line[0] != '(' else '_'}{line}: ..." for line in lines)
    return [_signature(ast.parse(each).body[0]) for each in functions]


def _of_class(name: str, kind: type) -> Signatures:
    found: Signatures = {}
    for member, value in vars(kind).items():
        if member in _NOT_COMPARED or member.startswith("_pybind11"):
            continue
        if isinstance(value, property):
            found[f"{name}.{member}"] = [each[-1:] for each in _told(value.fget.__doc__)]
        elif told := _told(getattr(kind, member).__doc__):
            found[f"{name}.{member}"] = told
    return found


def module_signatures() -> Signatures:
    found: Signatures = {}
    for name, value in vars(_core).items():
        if name.startswith("__"):
            continue
        if inspect.isclass(value):
            found[name] = []
            if not issubclass(value, Exception):
                found |= _of_class(name, value)
        else:
            found[name] = _told(value.__doc__) if callable(value) else [(type(value).__name__,)]
    return found


def stub_signatures() -> Signatures:
    found: Signatures = {}

    def read(body: list[ast.stmt], prefix: str) -> None:
        for each in body:
            if isinstance(each, ast.ClassDef):
                found[each.name] = []
                read(each.body, f"{each.name}.")
            elif isinstance(each, ast.FunctionDef):
                is_property = any(ast.unparse(d) == "property" for d in each.decorator_list)
                signature = _signature(each)[-1:] if is_property else _signature(each)
                found.setdefault(prefix + each.name, []).append(signature)
            elif isinstance(each, ast.AnnAssign):
                found[prefix + each.target.id] = [(ast.unparse(each.annotation),)]

    read(_STUB.body, "")
    return found


def _aliases() -> dict[str, str]:
    """Names of the stub for types: `_Row = tuple[...]`."""
    named = (each for each in _STUB.body if isinstance(each, ast.Assign))
    return {each.targets[0].id: ast.unparse(each.value) for each in named}


def _spelled_out(text: str) -> str:
    for name, kind in reversed(_aliases().items()):
        text = re.sub(rf"\b{name}\b", kind, text)
    return text


def _agree(core: str, stub: str) -> bool:
    """Whether the stub says the same of an argument or a result, or more where the core is bare."""
    pattern = re.sub(r"^arg\d+", r"\\w+", re.escape(core))  # it has no name there
    for kind in _BARE:
        pattern = re.sub(rf"\b{kind}\b(?!\\\[)", rf"{kind}(\\[.*\\])?", pattern)
    pattern = re.sub(r"\bobject\b", ".*", pattern)
    return re.fullmatch(pattern, _spelled_out(stub)) is not None


def test_the_stub_has_the_names_of_the_core() -> None:
    assert sorted(stub_signatures()) == sorted(module_signatures())


def test_the_stub_has_the_signatures_of_the_core() -> None:
    stub = stub_signatures()
    differing = [
        f"{name}: {core} in the core, {stub[name]} in the stub"
        for name, core in module_signatures().items()
        if name in stub
        and not (
            [*map(len, core)] == [*map(len, stub[name])]
            and all(
                map(_agree, (a for each in core for a in each), (a for e in stub[name] for a in e))
            )
        )
    ]
    assert differing == []


@pytest.mark.parametrize(
    ("core", "stub", "expected"),
    [
        ("rank: int", "rank: int", True),
        ("rank: int", "rank: str", False),
        ("ranks: list", "ranks: list[int]", True),
        ("list[int]", "list[str]", False),
        ("tensor: object", "tensor: Any", True),
        ("tensor: object", "tensors: Any", False),
        ("int = ...", "int", False),
        ("arg0: bytes", "blob: bytes", True),
        ("tuple[tuple, tuple]", "tuple[tuple[int, ...], tuple[int, ...]]", True),
    ],
)
def test_the_comparison_itself(core: str, stub: str, expected: bool) -> None:
    assert _agree(core, stub) == expected
