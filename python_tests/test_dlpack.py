"""Reading the memory of Python tensors (csrc/bindings/memory.cc, dlpack.h)."""

import ctypes
import gc
import pathlib
import shutil
import subprocess
import weakref

import numpy as np
import pytest
import torch

from hybridengine import _core

CSRC = pathlib.Path(__file__).parent.parent / "csrc"
PATHS = [True, False]  # exchange table, __dlpack__
DTYPES = list(_core.dtype_table())


def described(tensor):
    name = str(tensor.dtype).removeprefix("torch.")
    return (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), name, False)


# torch


@pytest.mark.parametrize("exchange", PATHS)
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_of_torch(name, exchange):
    tensor = torch.zeros(4, 5, 6).to(getattr(torch, name))
    for view in (tensor, tensor[1:, ::2], tensor.permute(2, 0, 1), tensor[0, 0, 0]):
        assert _core.describe_memory(view, exchange=exchange) == described(view)


@pytest.mark.parametrize("exchange", PATHS)
def test_tensors_that_require_grad(exchange):
    leaf = torch.zeros(3, 4, requires_grad=True)
    for tensor in (leaf, leaf * 2, leaf[:, 1:], torch.nn.Parameter(torch.zeros(2))):
        assert tensor.requires_grad
        assert _core.describe_memory(tensor, exchange=exchange) == described(tensor)


@pytest.mark.parametrize("exchange", PATHS)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3)])
def test_empty_tensors(shape, exchange):
    address, read_shape, strides, dtype, _ = _core.describe_memory(
        torch.zeros(shape), exchange=exchange
    )
    assert (address, read_shape, dtype) == (0, shape, "float32")
    assert len(strides) == len(shape)


@pytest.mark.parametrize("exchange", PATHS)
def test_expanded_and_scalar(exchange):
    expanded = torch.zeros(3, 1).expand(3, 4)
    assert _core.describe_memory(expanded, exchange=exchange)[2] == (1, 0)
    scalar = torch.tensor(3.5)
    assert _core.describe_memory(scalar, exchange=exchange) == described(scalar)


@pytest.mark.parametrize("exchange", PATHS)
def test_addresses_that_are_not_aligned(exchange):
    raw = bytearray(64)
    tensor = torch.frombuffer(raw, dtype=torch.float32, offset=3, count=5)
    address = _core.describe_memory(tensor, exchange=exchange)[0]
    assert address == tensor.data_ptr() and address % 4 == (3 + base_address(raw)) % 4


def base_address(raw):
    return ctypes.addressof(ctypes.c_char.from_buffer(raw))


@pytest.mark.parametrize("exchange", PATHS)
def test_nothing_is_kept(exchange):
    tensor = torch.zeros(1000)
    alive = weakref.ref(tensor.untyped_storage())
    before = weakref.ref(tensor)
    for _ in range(10):
        _core.describe_memory(tensor, exchange=exchange)
    del tensor
    gc.collect()
    assert before() is None and alive() is None


# numpy


@pytest.mark.parametrize("name", [n for n in DTYPES if hasattr(np, n)])
def test_every_dtype_of_numpy(name):
    array = np.zeros((4, 5), dtype=name)
    for view in (array, array[1:, ::2], array.T, array[::-1]):
        address, shape, strides, dtype, read_only = _core.describe_memory(view)
        assert address == view.__array_interface__["data"][0]
        assert (shape, dtype, read_only) == (view.shape, name, False)
        assert tuple(s * view.itemsize for s in strides) == view.strides


def test_read_only_arrays_may_be_read_but_not_written():
    array = np.arange(6, dtype=np.float32)
    array.flags.writeable = False
    assert _core.describe_memory(array)[4] is True
    result = np.zeros(6, dtype=np.float32)
    _core.copy_strided(array, result)
    assert (result == array).all()
    with pytest.raises(_core.UsageError, match=r"numpy.ndarray: it is read-only"):
        _core.copy_strided(result, array)


# Other producers


class OldProducer:
    """Knows only the protocol of before DLPack 1."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()


def test_old_protocol():
    array = np.zeros((3, 4), dtype=np.float32)
    assert _core.describe_memory(OldProducer(array)) == _core.describe_memory(array)


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Handmade:
    """A tensor of 2 x 3 float32 whose every field can be chosen; counts calls of its deleter."""

    device = "odd:3"
    dtype = "odd type"

    def __init__(self, *, major=1, flags=0, **fields):
        self.deleted = 0
        self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.on_delete)
        self.data = (ctypes.c_float * 8)()
        self.shape = (ctypes.c_int64 * 2)(2, 3)
        self.managed = Managed(major, 0, None, None, flags)
        self.managed.deleter = ctypes.cast(self.deleter, ctypes.c_void_p)
        defaults = {
            "data": ctypes.addressof(self.data),
            "device_type": 1,
            "ndim": 2,
            "code": 2,
            "bits": 32,
            "lanes": 1,
            "shape": ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64)),
        }
        for name, value in (defaults | fields).items():
            setattr(self.managed.tensor, name, value)

    def on_delete(self, _):
        self.deleted += 1

    def __dlpack__(self, max_version):
        assert max_version == (1, 1)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(ctypes.addressof(self.managed), b"dltensor_versioned", None)


def test_missing_strides_and_offset():
    tensor = Handmade(byte_offset=8)
    address = ctypes.addressof(tensor.data) + 8
    assert _core.describe_memory(tensor) == (address, (2, 3), (3, 1), "float32", False)
    assert tensor.deleted == 1


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"device_type": 2}, r"it lies on odd:3 \(DLPack device type 2\). Move it to the CPU"),
        ({"code": 5}, "its element type is odd type. View it as one of float64"),
        ({"bits": 8}, "its element type is odd type"),
        ({"lanes": 2}, "its element type is odd type"),
        ({"data": None}, "it has 6 elements but no memory"),
        ({"major": 2}, "it speaks DLPack 2.0"),
        ({"flags": 2}, "its library gave a copy of it"),
    ],
)
def test_what_cannot_be_used_is_refused_and_given_back(fields, facts):
    tensor = Handmade(**fields)
    with pytest.raises(_core.UsageError, match=r"cannot use the memory of a .*Handmade: " + facts):
        _core.describe_memory(tensor)
    assert tensor.deleted == 1


@pytest.mark.parametrize("exchange", PATHS)
@pytest.mark.parametrize(
    ("tensor", "facts"),
    [
        (torch.zeros(2, device="meta"), "meta"),
        (torch.zeros(2, dtype=torch.complex64), "torch.complex64"),
        (torch.zeros(2, dtype=torch.uint16), "torch.uint16"),
        (torch.eye(3).to_sparse(), ""),
    ],
)
def test_torch_tensors_that_cannot_be_used(tensor, facts, exchange):
    with pytest.raises(
        _core.UsageError, match=r"cannot use the memory of a torch.Tensor: .*" + facts
    ):
        _core.describe_memory(tensor, exchange=exchange)


@pytest.mark.parametrize("exchange", PATHS)
def test_too_many_dims(exchange):
    with pytest.raises(_core.UsageError, match="too many dims: 7 dims, limit 6"):
        _core.describe_memory(torch.zeros([1] * 7), exchange=exchange)


@pytest.mark.parametrize("thing", [[1.0], None, 3, "text", b"bytes", np.float32])
def test_things_that_are_no_tensors(thing):
    with pytest.raises(_core.UsageError, match=r"cannot use the memory of a builtins|DLPack"):
        _core.describe_memory(thing)


@pytest.mark.parametrize("error", [ValueError("odd"), BufferError("odd"), TypeError("odd")])
def test_errors_of_the_producer_are_told(error):
    class Failing:
        def __dlpack__(self, **_):
            raise error

    with pytest.raises(_core.UsageError, match=r"Failing: odd. Give a torch or numpy array"):
        _core.describe_memory(Failing())


def test_interrupts_pass_through():
    class Interrupted:
        def __dlpack__(self, **_):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _core.describe_memory(Interrupted())


# The declaration


def test_our_header_is_the_abi_of_torch(tmp_path):
    """Every offset and constant of bindings/dlpack.h against the header that torch ships."""
    theirs = pathlib.Path(torch.__file__).parent / "include"
    compiler = shutil.which("c++") or shutil.which("g++")
    if not (theirs / "ATen" / "dlpack.h").is_file():
        pytest.skip("this torch ships no ATen/dlpack.h")
    if "DLPackExchangeAPI" not in (theirs / "ATen" / "dlpack.h").read_text():
        pytest.skip("this torch's DLPack header has no exchange table")
    if compiler is None or not CSRC.is_dir():
        pytest.skip("no C++ compiler, or not run from a source tree")
    fields = {
        ("Version", "DLPackVersion"): "major minor",
        ("Device", "DLDevice"): "type=device_type index=device_id",
        ("DataType", "DLDataType"): "code bits lanes",
        ("Tensor", "DLTensor"): "data device ndim dtype shape strides byte_offset",
        ("ManagedTensor", "DLManagedTensor"): "tensor=dl_tensor context=manager_ctx deleter",
        ("ManagedTensorVersioned", "DLManagedTensorVersioned"): (
            "version context=manager_ctx deleter flags tensor=dl_tensor"
        ),
        ("ExchangeApiHeader", "DLPackExchangeAPIHeader"): "version previous=prev_api",
        ("ExchangeApi", "DLPackExchangeAPI"): (
            "header allocate=managed_tensor_allocator "
            "to_managed=managed_tensor_from_py_object_no_sync "
            "from_managed=managed_tensor_to_py_object_no_sync "
            "to_tensor=dltensor_from_py_object_no_sync current_stream=current_work_stream"
        ),
    }
    lines = []
    for (ours, their), names in fields.items():
        lines.append(f"static_assert(sizeof(he::{ours}) == sizeof({their}));")
        for name in names.split():
            mine, _, other = name.partition("=")
            other = other or mine
            lines.append(
                f"static_assert(offsetof(he::{ours}, {mine}) == offsetof({their}, {other}));"
            )
    for ours, their in {
        "kCpu": "kDLCPU",
        "kCuda": "kDLCUDA",
        "kCudaHost": "kDLCUDAHost",
        "kInt": "kDLInt",
        "kUint": "kDLUInt",
        "kFloat": "kDLFloat",
        "kBfloat": "kDLBfloat",
        "kBool": "kDLBool",
        "kFloat8E4m3fn": "kDLFloat8_e4m3fn",
        "kFloat8E5m2": "kDLFloat8_e5m2",
        "kReadOnly": "DLPACK_FLAG_BITMASK_READ_ONLY",
        "kCopied": "DLPACK_FLAG_BITMASK_IS_COPIED",
        "kMajorVersion": "DLPACK_MAJOR_VERSION",
    }.items():
        lines.append(f"static_assert(static_cast<long>(he::{ours}) == static_cast<long>({their}));")
    source = tmp_path / "abi.cc"
    source.write_text(
        "#include <cstddef>\n#include <ATen/dlpack.h>\n#include <bindings/dlpack.h>\n"
        "namespace he = hybridengine::dlpack;\n" + "\n".join(lines)
    )
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{theirs}", f"-I{CSRC}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
