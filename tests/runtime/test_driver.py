"""Drivers on a real cluster: how executions end, and that nothing is left of them."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.runtime.raycluster import job, shell, wait_for

from torchtpu_operator.contract.progress import PROGRESS_FILE, Progress
from torchtpu_operator.runtime.markers import busy_processes

NAP = 10**6 + os.getpid()  # seconds that only this test run's ranks sleep


def marked(text):
    """Pids of `sleep` processes with that duration, or of whatever has the text as an argument."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_success_has_progress_logs_and_result(cluster):
    script = """
import ttj, os, time
print("hello from", os.environ["RANK"], flush=True)
for step in range(3):
    ttj.report(step, {"loss": 1.5}, total=2)
    time.sleep(0.25)
"""
    result = cluster.drive(job([sys.executable, "-c", script]))
    assert (result.code, result.cause) == (0, "Succeeded"), result.output
    assert "[rank 0] hello from 0\n" in result.output
    assert "[rank 1]" not in result.output
    progress = Progress.from_json((cluster.run_dir(cluster.head) / PROGRESS_FILE).read_text())
    assert progress.phase == "Ended"
    assert (progress.step, progress.total, progress.metrics) == (2, 2, {"loss": 1.5})
    assert progress.rate is not None
    assert [host.states for host in progress.hosts] == [("done",) * 4] * 2
    second = cluster.run_dir(progress.hosts[1].address)
    assert (second / "rank-7.log").read_text() == "hello from 7\n"
    assert "[rank 7] hello from 7\n" in (second / "stdout").read_text()


def test_first_failing_rank_is_the_cause(cluster):
    ended = cluster.folder / "rank-0-ended"
    text = f"""
test $RANK = 0 && {{ (while kill -0 $$; do sleep 0.1; done; touch {ended}) 2>/dev/null & exit 0; }}
test $RANK = 5 || exec sleep {NAP}.25
until test -e {ended}; do sleep 0.1; done
echo broken
exit 3
"""
    result = cluster.drive(shell(text))
    termination = result.termination
    assert (result.code, result.cause) == (81, "RankFailed"), result.output
    assert (termination.rank, termination.exit_code, termination.host, termination.slice_id) == (5, 3, 1, 0)
    assert termination.secondary == 0
    assert "rank 0 had already ended with 0" in termination.message
    assert "[rank 5] broken\n" in result.output
    assert not marked(f"{NAP}.25")


def test_cause_of_killed_rank_and_error_file(cluster):
    result = cluster.drive(shell(f"test $RANK = 2 && kill -9 $$; exec sleep {NAP}.5"))
    assert (result.cause, result.termination.exit_code) == ("RankFailed", -9)
    assert "SIGKILL" in result.termination.message
    record = json.dumps({"message": {"message": "ValueError: secret", "extraInfo": {}}})
    text = f"test $RANK = 6 || exec sleep {NAP}.5; echo '{record}' > $TORCHELASTIC_ERROR_FILE; exit 1"
    result = cluster.drive(shell(text))
    assert (result.termination.rank, result.termination.error_type) == (6, "ValueError")
    assert "secret" not in result.termination.to_json()
    assert not marked(f"{NAP}.5")


def test_configuration_faults_name_what_is_missing(cluster):
    result = cluster.drive(job([sys.executable, "no/such.py"]))
    assert (result.code, result.cause) == (84, "Configuration")
    assert "'no/such.py'" in result.termination.message
    assert str(cluster.folder) in result.termination.message
    result = cluster.drive(job(["no-such-program"]))
    assert "'no-such-program'" in result.termination.message
    result = cluster.drive(shell("true", working_dir="/no/such/folder"))
    assert "/no/such/folder" in result.termination.message
    bad = cluster.folder / "script"
    bad.write_text("#!/no/such/interpreter\n")
    bad.chmod(0o755)
    result = cluster.drive(job([str(bad)]))
    assert (result.cause, result.termination.rank) == ("Configuration", 0)


def test_uneven_exit_names_who_still_runs(cluster):
    result = cluster.drive(shell(f"test $RANK = 1 && exit 0; exec sleep {NAP}.75", exit_deadline_s=2.0))
    assert (result.code, result.cause) == (86, "UnevenExit"), result.output
    assert "rank 1 ended with 0, but ranks 0, 2, 3, 4, 5, 6, 7 were still running" in result.termination.message
    assert not marked(f"{NAP}.75")


def test_reports_put_off_the_uneven_exit(cluster):
    script = """
import os, sys, time, ttj
if os.environ["RANK"] == "1": sys.exit(0)
for step in range(16 if os.environ["RANK"] == "3" else 0):
    ttj.report(step)
    time.sleep(0.25)
"""
    result = cluster.drive(job([sys.executable, "-c", script], exit_deadline_s=2.5))
    assert result.cause == "Succeeded", result.output


def test_startup_deadline_says_who_is_missing(cluster):
    result = cluster.drive(shell("true", slices=2, startup_deadline_s=1.5))
    assert (result.code, result.cause) == (82, "StartupDeadline")
    assert "1 of 2 slices of 2 hosts whole" in result.termination.message
    assert "1 of 2 slices seen" in result.termination.message


def test_sigterm_stops_with_grace_and_kills_who_ignores_it(cluster):
    marker = cluster.folder / "graceful"
    text = f"""
test $RANK = 4 && trap '' TERM
test $RANK = 0 && trap 'echo saved > {marker}; exit 0' TERM
setsid sleep {NAP}.125 &
echo ready
while true; do sleep 0.1; done
"""
    started = time.monotonic()
    driver = cluster.start_driver(shell(text, stop_grace_s=2.0))
    stdout = cluster.run_dir(next(a for a in cluster.nodes if a.endswith(".1.2"))) / "rank-4.log"
    wait_for(lambda: stdout.exists() and "ready" in stdout.read_text() and len(marked(f"{NAP}.125")) == 8, 60, "ranks")
    driver.send_signal(signal.SIGTERM)
    result = cluster.finish(driver, started)
    assert (result.code, result.cause) == (85, "Stopped"), result.output
    assert marker.read_text() == "saved\n"
    assert not marked(f"{NAP}.125")


def test_stop_marker_on_the_head_and_on_a_host(cluster):
    for address, cause in (
        (cluster.head, "Stopped"),
        (next(a for a in cluster.nodes if a.endswith(".1.2")), "HostLost"),
    ):
        marker = cluster.run_dir(address) / "stop"
        started = time.monotonic()
        driver = cluster.start_driver(shell(f"echo ready; exec sleep {NAP}.625"))
        wait_for(lambda: len(marked(f"{NAP}.625")) == 8, 60, "ranks")
        try:
            marker.touch()
            result = cluster.finish(driver, started)
        finally:
            marker.unlink()
        assert result.cause == cause, result.output
        assert not marked(f"{NAP}.625")


def test_killed_launcher_takes_its_ranks_along(cluster):
    started = time.monotonic()
    driver = cluster.start_driver(shell(f"setsid sleep {NAP}.375 & exec sleep {NAP}.375"))
    wait_for(lambda: len(marked(f"{NAP}.375")) == 16, 60, "ranks")
    host = cluster.run_dir(next(a for a in cluster.nodes if a.endswith(".1.1")))
    launcher = wait_for(lambda: busy_processes(host), 10, "launcher")
    os.kill(launcher[0], signal.SIGKILL)
    result = cluster.finish(driver, started)
    assert (result.code, result.cause) == (83, "HostLost"), result.output


def test_lost_host(cluster):
    addresses = cluster.add_slice(3, "v4", "2x2x2")
    cluster.wait_for_nodes()
    started = time.monotonic()
    driver = cluster.start_driver(shell(f"exec sleep {NAP}.875", accelerator="v4", topology="2x2x2"))
    wait_for(lambda: len(marked(f"{NAP}.875")) == 8, 60, "ranks")
    cluster.kill(addresses[1])
    result = cluster.finish(driver, started)
    assert (result.code, result.cause) == (83, "HostLost"), result.output
    assert result.termination.node == addresses[1]
    wait_for(lambda: not marked(f"{NAP}.875"), 10, "end of all ranks")
    result = cluster.drive(shell("true", accelerator="v4", topology="2x2x2", startup_deadline_s=1.0))
    assert "worker 1 missing" in result.termination.message


def test_versions_are_checked_first(cluster, tmp_path):
    (tmp_path / "ray.py").write_text("__version__ = '2.59.1'\n")
    result = cluster.drive(shell("true"), PYTHONPATH=str(tmp_path))
    assert (result.code, result.cause) == (84, "Configuration")
    assert "Ray 2.59.1" in result.termination.message
