"""rendezvous: how ranks find each other.

Ranks meet through a store (torch's TCPStore or FileStore, or anything with set, get and check),
which carries only addresses. Where HYBRIDENGINE_TOKEN is set, an address is signed with it; the
token itself comes from the launcher and never travels through the store.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Any, Protocol

from hybridengine import _core
from hybridengine._core import TimeoutError as CommTimeoutError
from hybridengine._core import TransportError, UsageError
from hybridengine.wording import kind_of

# Between two looks at the store: a start is soon over, or takes long.
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.001, 0.1
_SIGNATURE_BYTES = hashlib.sha256().digest_size
# How a value in the store starts, so that a rank without the token is told from a damaged address.
_SIGNED, _UNSIGNED = b"signed:", b"plain:"


class Store(Protocol):
    """The part of torch.distributed.Store that is used."""

    def set(self, key: str, value: Any, /) -> Any: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


def check_store(store: Any) -> None:
    """Throws UsageError on what cannot be one."""
    missing = [each for each in ("set", "get", "check") if not hasattr(store, each)]
    if missing:
        raise UsageError(
            f"store is {kind_of(store)} and has no {missing[0]}(). Use torch's TCPStore or "
            "FileStore, or an object with set(), get() and check()."
        )


def exchange(
    store: Store, name: str, rank: int, world: int, address: bytes, timeout: float
) -> list[bytes]:
    """Puts this rank's address into the store and takes those of all others.

    Rank 0 collects them and puts them into one table: every other rank asks for one key and gets
    one value. The store gets some 5 n requests, and 10 n a second while n ranks wait. Each address
    stays signed by its own rank.
    """
    keys = [f"hybridengine/{name}/{each}" for each in range(world)]
    table = f"hybridengine/{name}/table"
    store.set(keys[rank], _sign(keys[rank], address))
    if not _wait_for(store, keys if rank == 0 else [table], timeout):
        missing = [key for key in keys if key != keys[rank] and not store.check([key])]
        ranks = ", ".join(key.rsplit("/", 1)[1] for key in missing or keys[:1])
        raise CommTimeoutError(
            f"rank {ranks} did not come to the rendezvous for {timeout:.1f} s (communicator "
            f"{name!r}, rank {rank} of {world}). See its log; to wait longer set "
            "HYBRIDENGINE_TIMEOUT_S."
        )
    if rank == 0:
        store.set(table, _pack([bytes(store.get(key)) for key in keys]))
    values = _unpack(bytes(store.get(table)))
    if len(values) != world:
        raise TransportError(
            f"rank 0 knows {len(values)} addresses of communicator {name!r}, rank {rank} expects "
            f"{world}. Give every rank the same world."
        )
    return [_verify(key, value) for key, value in zip(keys, values, strict=True)]


def _pack(values: list[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in values)


def _unpack(table: bytes) -> list[bytes]:
    values = []
    while table:
        end = 4 + int.from_bytes(table[:4], "little")
        values.append(table[4:end])
        table = table[end:]
    return values


def _wait_for(store: Store, keys: list[str], timeout: float) -> bool:
    """Whether the store has all of `keys` in time.

    It is asked now and then, for one thing. torch's wait() would block other threads that use the
    same store, and Ctrl-C; in slices it writes two lines to stderr for each.
    """
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE_SECONDS
    while not store.check(keys):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_PAUSE_SECONDS)
    return True


def _sign(key: str, address: bytes) -> bytes:
    token = _core.env_token()
    if not token:
        return _UNSIGNED + address
    return _SIGNED + hmac.digest(token.encode(), key.encode() + b"|" + address, "sha256") + address


def _verify(key: str, value: bytes) -> bytes:
    """The address in `value`. Throws TransportError unless it is signed just as we sign."""
    if value.startswith(_SIGNED):
        address = value[len(_SIGNED) + _SIGNATURE_BYTES :]
    else:
        address = value.removeprefix(_UNSIGNED)
    if not hmac.compare_digest(_sign(key, address), value):
        raise TransportError(
            f"rank {key.rsplit('/', 1)[1]} did not sign its address with this rank's token. Give "
            "every rank the same HYBRIDENGINE_TOKEN, or none."
        )
    return address
