"""The submitter against a real dashboard: one submission, the driver's end, stopping."""

import os
import signal
import subprocess
import sys

import pytest
from tests.runtime.raycluster import SUBMITTED, wait_for

from torchtpu_operator.contract.termination import Termination
from torchtpu_operator.runtime.submit import LostError, Submitter


@pytest.fixture
def submit(cluster, tmp_path):
    """Start a submitter; the ranks (two, on one host) run the script."""
    started = []

    def start(script, job):
        (cluster.folder / SUBMITTED).write_text(script)
        log = tmp_path / f"{len(started)}"
        process = subprocess.Popen(
            [sys.executable, "-m", "torchtpu_operator.runtime", "submit"],
            env=cluster.environment
            | {
                "RAY_DASHBOARD_ADDRESS": f"{cluster.head}:8265",
                "RAY_JOB_SUBMISSION_ID": job,
                "TTJ_TERMINATION_LOG": str(log),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append((process, log))
        return process

    def finish(process, timeout=90):
        output, _ = process.communicate(timeout=timeout)
        log = next(log for one, log in started if one is process)
        return process.returncode, output, Termination.from_json(log.read_text())

    start.finish = finish
    yield start
    for process, _ in started:
        process.kill()
        process.communicate()


def test_two_submitters_one_run(cluster, submit):
    count = cluster.folder / "runs"
    text = f"echo run >> {count}; echo hello; sleep 2; echo bye; test $RANK = 1 && exit 9; sleep 100"
    first = submit(text, "job-1")
    second = submit(text, "job-1")
    for process in (first, second):
        code, output, termination = submit.finish(process)
        assert (code, str(termination.cause), termination.rank, termination.exit_code) == (81, "RankFailed", 1, 9), (
            output
        )
        assert output.count("[rank 0] hello") == 1
        assert output.count("[rank 0] bye") == 1
        assert "TTJ-RESULT" not in output
    assert count.read_text() == "run\n" * 2  # two ranks
    late = submit(text, "job-1")
    assert submit.finish(late)[0] == 81
    assert count.read_text() == "run\n" * 2


def test_success_and_no_key_for_ranks(submit):
    process = submit("env | grep -c RESULT_KEY; env | grep -c ^RAY_; true", "job-2")
    code, output, termination = submit.finish(process)
    assert (code, str(termination.cause)) == (0, "Succeeded"), output
    assert output.count("[rank 0] 0\n") == 2


def test_sigterm_stops_the_job_with_its_grace(cluster, submit):
    saved = cluster.folder / "saved"
    text = f"trap 'sleep 1; touch {saved}.$RANK; exit 0' TERM; echo ready; while true; do sleep 0.1; done"
    process = submit(text, "job-3")
    log = cluster.run_dir(next(a for a in cluster.nodes if a.endswith(".2.1"))) / "rank-1.log"
    wait_for(lambda: log.exists() and "ready" in log.read_text(), 60, "ranks")
    process.send_signal(signal.SIGTERM)
    code, output, termination = submit.finish(process)
    assert (code, str(termination.cause)) == (85, "Stopped"), output
    wait_for(lambda: os.path.exists(f"{saved}.0") and os.path.exists(f"{saved}.1"), 10, "graceful end")


def test_no_dashboard():
    with pytest.raises(LostError, match=r"127.0.0.9:1 did not answer in 1 s"):
        Submitter("http://127.0.0.9:1", "x").connect(1.0)
