"""What nouns show of themselves: one line with what tells them apart."""

from __future__ import annotations

import pickle

import pytest
import torch
from ranks import run_threads

import hybridengine as he
from hybridengine import Communicator, Layout, LayoutRule, Mapping, Spec
from hybridengine.mapping import Weight

pytestmark = pytest.mark.threads

SPEC = Spec.from_tensors([("w", (4, 2), "float32")])
PLAN = he.plan(SPEC, "fsdp2(2)", "replicated(2)")
ROUTE = "'fsdp2(2)' -> 'replicated(2)', 1 tensor"


@pytest.mark.parametrize(
    ("noun", "expected"),
    [
        (SPEC, "Spec(plain, 1 tensor, 32 bytes)"),
        (LayoutRule.parse("vllm(tp=2)@4-5"), "LayoutRule('vllm(tp=2)@4-5')"),
        (Layout.hf(mapping=Mapping([])), "LayoutRule('hf', mapping=Mapping(by hand, 0 rows))"),
        (Layout.hf().bind(SPEC), "Layout('hf', 1 tensor)"),
        (Mapping([Weight("**")]), "Mapping(by hand, 1 row)"),
        (PLAN.schedule(0, 64), f"Schedule({ROUTE}, rank 0, 2 buckets of at most 64 bytes)"),
        (PLAN, f"Plan({ROUTE}, 4 moves, 32 bytes between ranks)"),
        (
            PLAN.certificate,
            "Certificate(2 ranks, 32 bytes between them, 1 x the bound)",
        ),
    ],
)
def test_plain_values(noun, expected):
    assert repr(noun) == expected


def nouns(comm: Communicator) -> list[str]:
    half = torch.ones(2, 2)
    resharder = he.Resharder({"w": half}, "fsdp2(2)", "replicated(2)", comm=comm)
    texts = [repr(resharder)]
    resharder.run()
    texts += [repr(resharder), repr(resharder.report)]
    two_step = he.TwoStep(torch.nn.Linear(2, 1), torch.optim.AdamW, "hf", comm=comm)
    texts.append(repr(two_step))
    for each in two_step._parameters.values():
        each.grad = torch.ones_like(each)
    two_step.step()
    texts.append(repr(two_step.report))
    work = he.all_reduce(torch.ones(2), comm=comm, async_op=True)
    work.wait()
    texts.append(repr(work))
    texts.append(repr(he.masked_all_reduce(torch.ones(2), torch.ones(2), 0.5, comm=comm)))
    texts.append(repr(he.GradientReducer(torch.nn.Linear(2, 1).parameters(), comm=comm)))
    return texts


def test_what_lives_on_ranks():
    texts = run_threads(2, nouns, transport="loopback")[1]
    expected = [
        f"Resharder({ROUTE}, rank 1 of 2, run 0 x)",
        f"Resharder({ROUTE}, rank 1 of 2, run 1 x)",
        "Report(rank 1, loopback, ",
        "TwoStep('replicated(2)' -> 'hf', 2 parameters, rank 1 of 2)",
        "StepReport(received ",
        "Work(done)",
        "MaskedResult(kept 2 entries of this rank, sent ",
        "GradientReducer(2 parameters in 1 bucket, mean, sync_every=1)",
    ]
    for text, start in zip(texts, expected, strict=True):
        assert text.startswith(start) and "\n" not in text
    assert "received 16 of 16 bytes bound" in texts[2]


@pytest.mark.parametrize("name", ["UsageError", "TransportError", "TimeoutError", "InternalError"])
def test_errors_show_the_name_by_which_they_are_caught(name):
    kind = getattr(he, name)
    assert repr(kind) == f"<class 'hybridengine.{name}'>" and len(kind.__doc__) > 40
    copy = pickle.loads(pickle.dumps(kind("3 ranks")))
    assert type(copy) is kind and str(copy) == "3 ranks"
