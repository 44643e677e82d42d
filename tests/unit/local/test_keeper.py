"""Real processes: whatever way a run ends, the keeper leaves none and no folder."""

import json
import os
import subprocess
import sys
import time

import pytest

from torchtpu_operator.local import keeper, processes
from torchtpu_operator.local.pods import ENV_MARK

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="local runs need Linux")
# A child in a session of its own, orphaned at once, that ignores SIGTERM, below one that does not.
STUBBORN = "trap '' TERM; echo $$ >> pids; while :; do sleep 0.1; done"
FAMILY = '(setsid sh -c "$STUBBORN" &) ; echo $$ >> pids; while :; do sleep 0.1; done'


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


@pytest.fixture
def start(tmp_path):
    """A keeper with a family of processes; gives the keeper and the pids below it."""
    started = []

    def start():
        scratch = tmp_path / "ttj-x"
        scratch.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-m", "torchtpu_operator.local.keeper", str(scratch), "0.3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        environment = {**os.environ, ENV_MARK: str(scratch), "STUBBORN": STUBBORN}
        request = {"op": "start", "id": "a", "argv": ["sh", "-c", FAMILY], "env": environment, "cwd": str(tmp_path)}
        send(process, request | {"log": str(tmp_path / "log")})
        pids = until(lambda: (tmp_path / "pids").exists() and (p := (tmp_path / "pids").read_text().split())[1:] and p)
        return process, [int(pid) for pid in pids]

    yield start
    for process in started:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def send(process, request):
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()


def gone(pids):
    return all(processes.start_time(pid) is None for pid in pids)


@pytest.mark.parametrize("grace", [0, 0.3])
def test_stop_ends_everything(start, tmp_path, grace):
    process, pids = start()
    send(process, {"op": "stop", "grace_s": grace})
    assert process.wait(20) == 0
    assert gone(pids)
    assert not (tmp_path / "ttj-x").exists()


def test_the_end_of_its_input_does_too(start, tmp_path):
    process, pids = start()
    process.stdin.close()
    process.wait(30)
    assert gone(pids)
    assert not (tmp_path / "ttj-x").exists()


def test_it_reports_ends_and_failures(start, tmp_path):
    process, _ = start()
    request = {"op": "start", "id": "b", "argv": ["/nothing"], "env": {}, "cwd": "/", "log": str(tmp_path / "log")}
    send(process, request)
    send(process, request | {"id": "c", "argv": ["/bin/sh", "-c", "exit 7"]})
    send(process, {"op": "signal", "id": "a", "number": 9})
    events = [json.loads(process.stdout.readline()) for _ in range(5)]
    assert {(e["event"], e["id"], e.get("code")) for e in events} == {
        ("started", "a", None),
        ("failed", "b", None),
        ("started", "c", None),
        ("exited", "c", 7),
        ("exited", "a", -9),
    }


def test_a_sweep_clears_up_after_a_killed_keeper(start, tmp_path):
    process, pids = start()
    assert keeper.sweep(tmp_path, "ttj-", ENV_MARK) == []  # it lives
    process.kill()
    process.wait()
    (tmp_path / "ttj-link").symlink_to(tmp_path / "ttj-x")
    (tmp_path / "ttj-other").mkdir()
    assert keeper.sweep(tmp_path, "ttj-", ENV_MARK) == [tmp_path / "ttj-x"]
    until(lambda: gone(pids))
    assert sorted(path.name for path in tmp_path.glob("ttj-*")) == ["ttj-link", "ttj-other"]
