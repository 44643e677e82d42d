import json

import pytest

from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.runtime.gang import Gang, name_ranks
from torchtpu_operator.runtime.plan import rank_table

SPEC = JobSpec("j", "ns", "uid", 1, "TorchTPU", "CPU", "v6e", "2x4", 4, 1, ("x",))


@pytest.fixture
def gang():
    gang = Gang(rank_table(SPEC, [["a", "b"]]), exit_deadline_s=10.0)
    for rank in range(8):
        gang.event({"event": "started", "rank": rank, "age_s": 0.0}, 100.0)
    return gang


def ended(gang, rank, code, at, stopping=False, **more):
    gang.event(
        {"event": "exited", "rank": rank, "code": code, "age_s": 200.0 - at, "stopping": stopping, **more}, 200.0
    )


def test_the_earliest_failure_is_the_cause_whatever_is_heard_first(gang):
    ended(gang, 6, 1, 150.5)
    ended(gang, 2, -11, 150.1, error_type="ValueError")
    ended(gang, 4, 0, 120.0)
    ended(gang, 5, 0, 150.3)
    ended(gang, 0, -15, 150.0, stopping=True)
    assert gang.trouble(200.0)
    termination = gang.termination(None, False)
    assert (termination.cause, termination.rank, termination.exit_code) == ("RankFailed", 2, -11)
    assert (termination.secondary, termination.error_type, termination.node) == (1, "ValueError", "a")
    assert termination.message == (
        "rank 2 (slice 0, host 0, device 2, a) was killed by SIGSEGV, ValueError; rank 4 had already ended with 0;"
        " 1 more failed after it"
    )


def test_a_lost_host_explains_failures_elsewhere_but_not_its_own(gang):
    ended(gang, 0, 1, 150.0)
    gang.lost["b"] = "its node died"
    termination = gang.termination(None, False)
    assert (termination.cause, termination.node, termination.host, termination.secondary) == ("HostLost", "b", 1, 1)
    assert "ranks 4, 5, 6, 7" in termination.message
    ended(gang, 4, 9, 149.0)
    assert gang.termination(None, False).cause == "RankFailed"


def test_asked_to_stop(gang):
    for rank in range(8):
        ended(gang, rank, -15, 150.0, stopping=True)
    assert gang.termination("told to", False).cause == "Stopped"
    gang.lost["a"] = "its pod was told to stop"
    assert gang.termination("told to", False).cause == "Stopped"
    assert gang.termination(None, False).cause == "HostLost"


def test_uneven_exit_waits_for_reports_and_exits(gang):
    assert not gang.uneven(1000.0)
    ended(gang, 1, 0, 150.0)
    assert not gang.uneven(160.0)
    assert gang.uneven(160.1)
    gang.report(5, "{}", 158.0)
    assert not gang.uneven(168.0)
    assert gang.uneven(168.1)
    termination = gang.termination(None, True)
    assert (termination.cause, termination.rank) == ("UnevenExit", 0)
    for rank in range(8):
        ended(gang, rank, 0, 165.0)
    assert not gang.uneven(1000.0)
    assert gang.termination(None, False).cause == "Succeeded"


def test_progress_comes_from_rank_0_and_is_checked(gang):
    def report(step, when, **more):
        return json.dumps({"step": step, "total": 9, "time": when, "metrics": {"loss": 0.5}, **more})

    gang.report(0, report(0, 10.0), 1.0)
    gang.report(1, report(77, 10.0), 1.0)
    gang.report(0, report(4, 12.0, metrics={"a": 1, "bad": "text", "nan": float("nan"), "b": True}), 2.0)
    for bad in ("", "[]", '{"step": 1}', report("x", 1.0), report(1, "x"), report(1, 1.0, metrics=[1])):
        gang.report(0, bad, 3.0)
    progress = gang.progress("Running", "")
    assert (progress.step, progress.total, progress.rate, progress.metrics) == (4, 9, 2.0, {"a": 1.0, "b": 1.0})
    assert progress.hosts[1].ranks == (4, 5, 6, 7)
    assert progress.hosts[1].states == ("running",) * 4


def test_name_ranks():
    assert name_ranks([3]) == "rank 3"
    assert name_ranks(list(range(10))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
