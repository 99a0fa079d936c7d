"""What is read from a module or a dict, and what is known of memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny_models as tiny
import torch

import hybridengine.tensors as memory
from hybridengine import UsageError
from hybridengine.layouts.held import held_by, writable


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 3)
        self.second = torch.nn.Linear(2, 3, bias=False, dtype=torch.bfloat16)
        self.third = torch.nn.Linear(2, 3, bias=False)
        self.third.weight = self.first.weight
        self.register_buffer("kept", torch.ones(4, dtype=torch.int64))
        self.register_buffer("scratch", torch.ones(4), persistent=False)


def test_a_module():
    model = Small()
    held = held_by(model)
    assert held.rows == [
        ("kept", (4,), "int64"),
        ("first.weight", (3, 2), "float32"),
        ("first.bias", (3,), "float32"),
        ("second.weight", (3, 2), "bfloat16"),
    ]
    assert held.aliases == [("third.weight", "first.weight")]
    assert not held.whole and held.uncut == [] and held.config is None
    assert held.tensors["first.weight"].data_ptr() == model.first.weight.data_ptr()
    model.first.weight.data = torch.ones(3, 2)  # other storage, which the next run must see
    assert held.tensors["first.weight"].data_ptr() == model.first.weight.data_ptr()


def test_a_config_comes_along_where_its_architecture_is_known():
    model = Small()
    for facts, known in ((tiny.config(), True), ({"architectures": ["Other"]}, False)):
        model.config = SimpleNamespace(to_dict=lambda facts=facts: facts)
        assert (held_by(model).config is not None) == known


def test_what_counts_as_one_tensor():
    """The same elements: a view of another shape or place is a tensor of its own."""
    board = torch.zeros(4, 4)
    given = {
        "a": board,
        "b": board.view(4, 4),
        "c": board.T,
        "d": board[:2],
        "e": board.view(torch.int32),
        "f": board.clone(),
        "g": torch.zeros(0, 3),
        "h": torch.zeros(0, 3),
    }
    assert held_by(given).aliases == [("b", "a")]
    nothing = torch.zeros(0)
    assert held_by({"a": nothing, "b": nothing}).aliases == [("b", "a")]


def _freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


class _Wrapper(torch.Tensor):
    """A subclass without memory of its own, as quantized weights are."""

    @staticmethod
    def __new__(cls, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def _fake() -> torch.Tensor:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
@pytest.mark.parametrize("make", [_freed, lambda: _Wrapper((2, 2)), _fake])
def test_a_tensor_without_memory_is_named(make):
    for read in (held_by, writable):
        with pytest.raises(
            UsageError, match=r"'w': cannot use the memory of .*(no memory|storage)"
        ):
            read({"w": make()})


def test_a_sign_that_is_kept_beside_the_memory():
    """torch negates lazily: the bytes that lie there mean another number."""
    lazy = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    for read in (held_by, writable):
        with pytest.raises(UsageError, match=r"'w': .*is_neg\(\).*Pass resolve_neg\(\)"):
            read({"w": lazy})
    held_by({"w": lazy.resolve_neg()})


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ([torch.ones(1)], "model is a list"),
        ({"w": [1.0]}, "'w' is a list, not a torch tensor"),
        ({"w": torch.empty(1, device="meta")}, "'w' is on the meta device"),
        ({"w": torch.ones(2, 2).to_sparse()}, "'w' is torch.sparse_coo"),
    ],
)
def test_what_is_no_model(model, expected):
    with pytest.raises(UsageError, match=expected):
        held_by(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16", "torch.bfloat16"])
def test_parse_dtype(dtype):
    assert memory.parse_dtype(dtype) == "bfloat16"
    assert memory.parse_dtype(None) is None


@pytest.mark.parametrize("dtype", [torch.int8, "int8", "nn", "", 7, torch.complex64])
def test_parse_dtype_refuses_what_does_not_float(dtype):
    with pytest.raises(UsageError, match="is no floating torch dtype"):
        memory.parse_dtype(dtype)


def test_allocate():
    tensor = memory.allocate((2, 0, 3), "float16")
    assert (tuple(tensor.shape), tensor.dtype) == ((2, 0, 3), torch.float16)
    assert memory.allocate((), "float32", zeroed=True).item() == 0


def test_a_view_at_an_offset():
    board = torch.arange(24.0)[3:].view(7, 3)
    assert memory.view(board, (2, 3), (3, 1), 6).equal(board[2:4])


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_num_different_counts_bits(size):
    dtype = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[size]
    one, other = torch.zeros(3, 5, dtype=dtype), torch.zeros(3, 5, dtype=dtype)
    assert memory.num_different(one, other) == 0
    other[1, 2], other[2, 4] = 1, 2
    assert memory.num_different(one, other) == 2
    if dtype.is_floating_point:
        assert memory.num_different(torch.tensor([-0.0]), torch.tensor([0.0])) == 1


def check_apart(out: dict, sources: dict, aliases: tuple = ()) -> None:
    memory.check_apart(writable(out).tensors, sources, aliases)


def test_memory_that_lies_apart():
    board = torch.zeros(30)
    sources = {"a": board[:5], "b": board[5:5], "c": board[20:]}
    check_apart({"x": board[5:10], "y": board[10:20], "z": board[12:12]}, sources)
    check_apart({}, {"a": board, "b": board})  # sources may share


@pytest.mark.parametrize(
    ("first", "last"), [(0, 1), (4, 5), (4, 6), (3, 12), (0, 30), (29, 30), (5, 21)]
)
def test_memory_that_overlaps(first, last):
    board = torch.zeros(30)
    with pytest.raises(UsageError, match="share memory"):
        check_apart({"x": board[first:last]}, {"a": board[:5], "c": board[20:]})


def test_an_out_tensor_that_sources_hide():
    """A short source between a long one and the destination does not end the long one."""
    board = torch.zeros(30)
    with pytest.raises(UsageError, match="'x' and model tensor 'long' share memory"):
        check_apart({"x": board[10:12]}, {"long": board, "short": board[2:4]})


def test_tied_names_of_out():
    one, two = torch.zeros(4), torch.zeros(4)
    check_apart({"a": one, "b": one}, {}, (("b", "a"),))
    with pytest.raises(UsageError, match="'b' has memory of its own"):
        check_apart({"a": one, "b": two}, {}, (("b", "a"),))
    with pytest.raises(UsageError, match="share memory"):
        check_apart({"a": one, "b": one}, {})
