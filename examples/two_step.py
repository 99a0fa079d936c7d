"""Two local ranks train a small module and keep generation's copy of it up to date.

python examples/two_step.py
"""

import torch

import hybridengine
from hybridengine.launch import run_local

STEPS = 20


def one_rank(comm: hybridengine.Communicator) -> tuple[list[float], int, int]:
    """The loss of each step as *generation* sees it, and bytes received and due in the last."""
    module = torch.nn.Linear(16, 4)
    with torch.no_grad():
        module.weight.zero_()  # every rank starts with the same weights
        module.bias.zero_()
    two_step = hybridengine.TwoStep(
        module,
        lambda pieces: torch.optim.AdamW(pieces, lr=0.1),
        f"replicated({comm.world})",
        comm=comm,
        max_norm=1.0,
        grad_op="mean",
    )
    generator = torch.Generator().manual_seed(comm.rank)  # and has data of its own
    inputs = torch.randn(64, 16, generator=generator)
    targets = inputs[:, :4] - inputs[:, 4:8]
    losses = []
    for _ in range(STEPS):
        weights = two_step.generation
        answer = inputs @ weights["weight"].t() + weights["bias"]
        losses.append(torch.nn.functional.mse_loss(answer, targets).item())
        two_step.zero_grad()
        torch.nn.functional.mse_loss(module(inputs), targets).backward()
        two_step.step()
    return losses, two_step.report.received_bytes, two_step.report.bound_bytes


if __name__ == "__main__":
    for rank, (losses, received, bound) in enumerate(run_local(2, one_rank)):
        print(f"rank {rank}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"rank {rank}: received {received} bytes of {bound} in the last step")
