"""The launcher alone, without Ray: exits, stops, logs, and that nothing is left."""

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.runtime.raycluster import wait_for

from torchtpu_operator.runtime import markers
from torchtpu_operator.runtime.output import read_log

COUNTER = itertools.count()


def alive(nap):
    """Pids of `sleep` processes of that duration."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().split(b"\0")[1:2] == [nap.encode()]:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def nap():
    """A duration in seconds that only this test's `sleep` processes have."""
    return f"{2 * 10**6 + os.getpid()}.{next(COUNTER):03d}"


class Running:
    """A launcher process and its events."""

    def __init__(self, run_dir, scripts, grace_s=5.0, **request):
        self.run_dir = run_dir
        self.events = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torchtpu_operator.runtime.launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        environment = dict(os.environ)
        ranks = [
            {
                "rank": rank,
                "argv": script if isinstance(script, list) else ["bash", "-c", script],
                "env": environment | {"RANK": str(rank)},
                "cwd": str(run_dir),
                "log": str(run_dir / f"rank-{rank}.log"),
            }
            for rank, script in enumerate(scripts)
        ]
        self.send({"ranks": ranks, "grace_s": grace_s, "run_dir": str(run_dir), **request})

    def send(self, value):
        text = value if isinstance(value, str) else json.dumps(value)
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    @property
    def pid(self):
        """The launcher has detached itself; its marker names it."""
        return wait_for(lambda: markers.busy_processes(self.run_dir), 10, "launcher")[0]

    def until(self, kind, timeout=30.0):
        """Read events up to one of a kind."""
        deadline = time.monotonic() + timeout
        while True:
            assert select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0], self.events
            line = self.process.stdout.readline()
            assert line, self.events
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == kind:
                return self.events[-1]

    def codes(self, timeout=30.0):
        """Exit codes by rank, once everything is over."""
        self.until("done", timeout)
        assert self.process.stdout.readline() == b""
        assert not markers.busy_processes(self.run_dir)
        return {e["rank"]: e["code"] for e in self.events if e["event"] == "exited"}

    def log(self, rank):
        path = self.run_dir / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def launch(tmp_path):
    running = []

    def start(*scripts, **options):
        running.append(Running(tmp_path, scripts, **options))
        return running[-1]

    yield start
    for one in running:
        one.process.stdin.close()
        one.process.stdout.close()
        one.process.wait()
    wait_for(lambda: not markers.busy_processes(tmp_path), 20, "end of launchers")


def test_exit_codes_and_signals(launch):
    running = launch("exit 0", "echo out; echo err >&2; exit 3", "kill -9 $$", "kill -SEGV $$")
    assert running.codes() == {0: 0, 1: 3, 2: -9, 3: -11}
    assert running.log(1) == "out\nerr\n"
    assert not any(e["stopping"] for e in running.events if e["event"] == "exited")


def test_a_program_that_cannot_start_stops_the_others(launch, nap):
    running = launch(f"exec sleep {nap}", ["/no/such/program"])
    assert running.codes() == {0: -15}
    failed = next(e for e in running.events if e["event"] == "failed")
    assert (failed["rank"], failed["message"]) == (1, "failed to start: No such file or directory")
    assert not alive(nap)


def test_children_of_ended_ranks_do_not_hold_it_up(launch, nap):
    running = launch(f"sleep {nap} & setsid sleep {nap} & (sleep {nap} &); echo last; exit 0", "exit 0")
    started = time.monotonic()
    assert running.codes() == {0: 0, 1: 0}
    assert time.monotonic() - started < 5
    assert running.log(0) == "last\n"
    assert not alive(nap)


def test_stop_gives_grace_then_kills_everything(launch, nap):
    polite = f"trap 'echo saved; exit 0' TERM; setsid sleep {nap} & echo ready; while true; do sleep 0.1; done"
    stubborn = f"trap '' TERM; (setsid sleep {nap} &); echo ready; while true; do sleep 0.1; done"
    running = launch(polite, stubborn, grace_s=1.0)
    wait_for(lambda: "ready" in running.log(0) and "ready" in running.log(1), 10, "ranks")
    asked = time.monotonic()
    running.send("stop")
    assert running.codes() == {0: 0, 1: -9}
    assert time.monotonic() - asked >= 1.0
    assert "saved" in running.log(0)
    assert all(e["stopping"] for e in running.events if e["event"] == "exited")
    assert not alive(nap)


def test_end_of_the_agent_stops_the_ranks(launch, nap):
    running = launch(f"exec sleep {nap}", f"exec sleep {nap}")
    running.until("started")
    running.process.stdin.close()
    assert running.codes() == {0: -15, 1: -15}
    assert not alive(nap)


def test_marker_stops_and_the_verb_waits_for_it(launch, nap, tmp_path):
    running = launch(f"trap 'sleep 0.5; exit 7' TERM; echo ready; while true; do sleep 0.1; done; sleep {nap}")
    wait_for(lambda: "ready" in running.log(0), 10, "rank")
    command = [sys.executable, "-m", "torchtpu_operator.runtime", "stop", "--timeout", "20"]
    subprocess.run(command, env=os.environ | {"TTJ_RUN_DIR": str(tmp_path)}, check=True, timeout=30)
    assert not markers.busy_processes(tmp_path)
    assert running.codes() == {0: 7}
    assert [e["reason"] for e in running.events if e["event"] == "stopping"] == ["marker"]


def test_ranks_die_with_a_killed_launcher(launch, nap):
    running = launch(f"exec sleep {nap}", f"exec sleep {nap}")
    wait_for(lambda: len(alive(nap)) == 2, 10, "ranks")
    os.kill(running.pid, signal.SIGKILL)
    wait_for(lambda: not alive(nap), 10, "end of ranks")


def test_pod_log_has_prefixes_and_whole_lines(launch, tmp_path):
    pod = tmp_path / "pod"
    pod.touch()
    launch("printf 'a\\nb'; sleep 0.3; printf 'c\\nd'", "echo x", pod_stdout=str(pod)).codes()
    assert sorted(pod.read_text().splitlines()) == ["[rank 0] a", "[rank 0] bc", "[rank 0] d", "[rank 1] x"]


def test_logs_are_bounded_and_the_newest_is_kept(launch, tmp_path):
    limit = 256 * 1024
    running = launch("yes 0123456789abcde | head -c 3000000; echo the end", log_limit=limit)
    assert running.codes() == {0: 0}
    files = sorted(tmp_path.glob("rank-0.log*"))
    assert len(files) == 2
    assert all(file.stat().st_size <= limit + 65536 for file in files)
    bases = [0] + [e["base"] for e in running.events if e["event"] == "rotated"]
    assert bases[-1] + files[0].stat().st_size == 3000000 + len("the end\n")
    begin, data = read_log(files[0], bases[-1], bases[-2], 0, 1 << 30)
    assert begin == bases[-2]
    assert begin + len(data) == bases[-1]
    begin, data = read_log(files[0], bases[-1], bases[-2], bases[-1], 1 << 30)
    assert data.endswith(b"the end\n")


def test_200_megabytes_to_a_pod_log_that_nobody_reads(launch, tmp_path):
    os.mkfifo(tmp_path / "pod")
    reader = os.open(tmp_path / "pod", os.O_RDONLY | os.O_NONBLOCK)
    running = launch("head -c 200000000 /dev/zero | tr '\\0' '\\n'; exit 5", pod_stdout=str(tmp_path / "pod"))
    pid = running.pid
    peak = 0

    def ended():
        nonlocal peak
        for line in Path(f"/proc/{pid}/status").read_text().splitlines() if Path(f"/proc/{pid}").exists() else []:
            if line.startswith("VmHWM"):
                peak = int(line.split()[1])
        return select.select([running.process.stdout], [], [], 0)[0] and running.until("exited", 60)

    assert wait_for(ended, 60, "the rank")["code"] == 5
    assert sum(file.stat().st_size for file in tmp_path.glob("rank-0.log*")) <= 2 * 64 * 2**20 + 65536
    assert peak < 64 * 1024  # KiB
    os.close(reader)
