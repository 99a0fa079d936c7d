"""Ranks to which the kernel forbids process_vm_readv, as containers do: what test_cma.py starts."""

import ctypes
import os
import platform

import torch

import hybridengine as he

# Of process_vm_readv, and what seccomp calls the architecture it is that number on.
_CALL_NUMBERS = {"x86_64": 310, "aarch64": 270}
CALL_NUMBER = _CALL_NUMBERS.get(platform.machine())

_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of the filter's machine
_ALLOW, _FAIL_WITH = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2  # of prctl
_EPERM = 1


class _Step(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.POINTER(_Step)))


def forbid() -> None:
    """To this process, for good."""
    steps = (_Step * 4)(
        _Step(_LOAD, 0, 0, 0),
        _Step(_JUMP_IF_EQUAL, 0, 1, CALL_NUMBER),
        _Step(_RETURN, 0, 0, _FAIL_WITH | _EPERM),
        _Step(_RETURN, 0, 0, _ALLOW),
    )
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    program = ctypes.byref(_Program(4, steps))
    assert libc.prctl(_SECCOMP, _FILTER, program, 0, 0) == 0, os.strerror(ctypes.get_errno())


def meet(pipe, path: str, rank: int, world: int, when: str, transport: str) -> None:
    """A reshard and a sum, checked; sends ("ok", transport) or (error's type, its text), and what
    was written to stderr."""
    log = os.path.join(os.path.dirname(path), f"log{rank}")
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 2)
    if when == "before":
        forbid()
    try:
        outcome = ("ok", _checked(path, rank, world, when, transport))
    except (he.UsageError, he.TransportError, he.TimeoutError) as error:
        outcome = (type(error).__name__, str(error))
    with open(log) as file:
        pipe.send((*outcome, file.read()))


def _checked(path: str, rank: int, world: int, when: str, transport: str) -> str:
    store = torch.distributed.FileStore(path, world)
    comm = he.Communicator(store, rank, world, transport=transport, timeout=3)
    if when == "after":
        forbid()
    full = torch.arange(world << 18, dtype=torch.float32).reshape(world << 8, 1 << 10)
    source = {"w": full.chunk(world)[rank].clone()}
    out = {"w": torch.empty_like(full)}
    layouts = (f"fsdp2({world})", f"replicated({world})")
    resharder = he.Resharder(source, *layouts, comm=comm, out=out)
    for _ in range(2):
        out["w"].fill_(float("nan"))
        resharder.run()
        assert torch.equal(out["w"], full)
    each = torch.full((1 << 16,), float(rank + 1))
    he.all_reduce(each, comm=comm)
    assert bool((each == world * (world + 1) / 2).all())
    name = comm.transport
    comm.close()
    return name
