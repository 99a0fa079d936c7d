"""Element types of checkpoints: their bits arrive, or the tensor and its type are named."""

from __future__ import annotations

import pytest
import tiny_models as tiny
import torch
from ranks import run_threads

from hybridengine import Communicator, UsageError, reshard

pytestmark = pytest.mark.threads


@pytest.mark.parametrize(
    "name", ["float8_e8m0fnu", "float8_e4m3fnuz", "uint16", "uint64", "complex64"]
)
def test_what_the_engine_lacks_is_named(name):
    """As scales of new checkpoints have: the tensor, the type, and what to do; on both sides."""
    scale = torch.zeros(4, 16, dtype=torch.uint8).view(getattr(torch, name))

    def main(comm: Communicator) -> list[str]:
        told = []
        for model, out in (({"scale": scale}, None), ({"scale": torch.zeros(4)}, {"scale": scale})):
            with pytest.raises(UsageError) as raised:
                reshard(model, "replicated(2)", "hf", comm=comm, out=out)
            told.append(str(raised.value))
        return told

    for told in run_threads(2, main, transport="loopback"):
        for text in told:
            assert text.startswith("'scale': ")
            assert f"its element type is torch.{name}. View it as one of float64, " in text


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bool", "uint8", "int8"])
def test_bits_of_small_ones_arrive(name):
    kind = getattr(torch, name)
    bits = torch.arange(12, dtype=torch.uint8) * 7
    full = (bits % 2 if name == "bool" else bits).view(kind).reshape(4, 3)

    def main(comm: Communicator) -> None:
        got = reshard({"w": tiny.chunk(full, 2, comm.rank)}, "fsdp2(2)", "replicated(2)", comm=comm)
        tiny.assert_same(got, {"w": full})

    run_threads(2, main, transport="loopback")
