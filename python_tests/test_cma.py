"""cma where the kernel forbids it, to all ranks or to some: exact values or an error, and the right
words."""

import forbidden_reads
import pytest
from ranks import context

from hybridengine import _core

_CMA = next(entry for entry in _core.transports() if entry["name"] == "cma")

pytestmark = [
    pytest.mark.skipif(forbidden_reads.CALL_NUMBER is None, reason="the call's number is unknown"),
    pytest.mark.skipif(not _CMA["available"], reason=f"cma: {_CMA['reason']}"),
]


def outcomes(tmp_path, whens, transports):
    """(ok or an error, transport or text, stderr) of each rank."""
    pipes, processes = [], []
    for rank, (when, transport) in enumerate(zip(whens, transports, strict=True)):
        ours, theirs = context.Pipe(duplex=False)
        args = (theirs, str(tmp_path / "store"), rank, len(whens), when, transport)
        processes.append(context.Process(target=forbidden_reads.meet, args=args, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    assert all(pipe.poll(30) for pipe in pipes)
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join(10)
        assert process.exitcode == 0
    return found


def test_forbidden_to_all_is_one_warning_with_the_reason(tmp_path):
    found = outcomes(tmp_path, ["before"] * 3, ["auto"] * 3)
    assert [each[:2] for each in found] == [("ok", "shm")] * 3
    errors = "".join(log for *_, log in found)
    assert errors.count("\n") == 1
    assert (
        "rank 0 warn transport] shm is used, since a faster transport is not available: cma: "
        in (errors)
    )
    assert "process_vm_readv does not work here (Operation not permitted)" in errors


def test_allowed_to_all_warns_of_nothing(tmp_path):
    assert outcomes(tmp_path, ["no"] * 2, ["auto"] * 2) == [("ok", "cma", "")] * 2


@pytest.mark.parametrize(
    ("whens", "transports"),
    [
        (["no", "before", "before"], ["auto"] * 3),
        (["no", "no", "no"], ["cma", "shm", "shm"]),
    ],
)
def test_a_rank_without_it_is_named_by_one_that_has_it(tmp_path, whens, transports):
    found = outcomes(tmp_path, whens, transports)
    assert [each[:2] for each in found] == [("ok", "cma"), ("ok", "shm"), ("ok", "shm")]
    assert [log for *_, log in found[1:]] == ["", ""]
    log = found[0][2]
    assert log.count("\n") == 1
    assert "rank 1 (process" in log or "rank 2 (process" in log  # whichever it asks first
    assert "uses shm and not cma, which it was told to or which is not available to it" in log


def test_forbidden_after_they_connected_blames_this_rank(tmp_path):
    found = outcomes(tmp_path, ["no", "after"], ["auto"] * 2)
    assert [each[:2] for each in found] == [("ok", "cma")] * 2
    assert found[0][2] == ""
    log = found[1][2]
    assert log.count("\n") == 1
    assert "cma is not available to this rank any more: process_vm_readv does not work" in log


def test_forced_but_forbidden_is_an_error(tmp_path):
    (_, silent, _), (kind, text, _) = outcomes(tmp_path, ["no", "before"], ["cma", "cma"])
    assert kind == "UsageError" and "transport cma is not available here" in text
    assert "rank 1 did not come to the rendezvous" in silent
