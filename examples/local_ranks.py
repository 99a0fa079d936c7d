"""Ranks as processes of this host, without torchrun: python examples/local_ranks.py"""

import torch

import hybridengine
from hybridengine.launch import run_local

SHAPE = (10, 3)


def one_rank(comm: hybridengine.Communicator) -> list[int]:
    """Ranks 0 and 1 hold a matrix by rows; rank 2 wants it whole."""
    model = None
    if comm.rank < 2:
        rows = torch.arange(30).reshape(SHAPE).chunk(2)[comm.rank]
        model = {"weight": rows.contiguous()}
    weights = hybridengine.reshard(model, "fsdp2(2)", "replicated(1)@2", comm=comm)
    return [each.shape[0] for each in weights.values()]


if __name__ == "__main__":
    print(run_local(3, one_rank))  # [[], [], [10]]
