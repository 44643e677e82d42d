"""Real Ray, torch-free scripts: how `ttj run` ends, and that nothing is left of it."""

import os
import signal
from pathlib import Path

from tests.runtime.local.running import Ttj, output_until, until

ONE = "{accelerator: v6e, topology: 1x1}"
TWO_HOSTS = "{accelerator: v6e, topology: 2x4, chipsPerHost: 4}"
WAIT = """
import pathlib, signal, sys, time, ttj
def stop(*_):
    pathlib.Path("graceful").write_text("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
ttj.report(7, metrics={"loss": 0.5}, total=7)
time.sleep(600)
"""
HOSTS = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "TPU_WORKER_ID", "TTJ_DEVICE", "GLOO_SOCKET_IFNAME")
print(json.dumps({name: os.environ.get(name) for name in names}), flush=True)
assert not any(name.startswith("RAY_") for name in os.environ)
if os.environ["RANK"] == "5":
    print("\\x1b[31mgoing", flush=True)
    sys.exit(3)
import time; time.sleep(600)
"""


def test_a_job_of_one_rank_succeeds(ttj: Ttj) -> None:
    process = ttj.start("import os; print('hello', os.environ['RANK'], os.getcwd())", ONE)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert f"[rank 0] hello 0 {ttj.folder}" in output
    assert "succeeded after" in output
    assert "registry.example/train:1" in output  # what stands for the image is said
    assert not ttj.alive()


def test_a_failing_rank_is_the_outcome(ttj: Ttj) -> None:
    process = ttj.start(HOSTS, TWO_HOSTS, "--output", "out")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "RankFailed" in output
    assert "rank 5" in output
    assert "| \\x1b[31mgoing" in output  # the end of its log, harmless
    assert (ttj.folder / "out/slice-0-host-1/rank-5.log").exists()
    assert not ttj.alive()


def test_control_c_stops_the_ranks_gently(ttj: Ttj) -> None:
    process = ttj.start(WAIT, ONE)
    seen = output_until(process, "[rank 0] ready")
    assert "step 7/7" in seen or output_until(process, "step 7/7")  # the log takes a longer way than the progress
    (scratch,) = ttj.scratch()
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert (ttj.folder / "graceful").read_text() == "saved"
    assert not ttj.alive()
    assert not scratch.exists()


def test_nothing_survives_a_killed_ttj_or_keeper(ttj: Ttj) -> None:
    """Two runs side by side; one loses `ttj`, the other its keeper."""
    first, second = ttj.start(WAIT, ONE, name="first"), ttj.start(WAIT, ONE, name="second")
    for process in (first, second):
        output_until(process, "[rank 0] ready")
    folders = ttj.scratch()
    assert len(folders) == 2
    first.kill()
    first.wait()
    until(lambda: len(ttj.scratch()) == 1)
    (left,) = ttj.scratch()
    keeper = next(pid for pid, command in ttj.alive().items() if "local.keeper" in command)
    os.kill(keeper, signal.SIGKILL)
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 3, output
    assert "was killed" in output
    until(lambda: not ttj.alive())
    assert not left.exists()
    until(lambda: not any(map(Path.exists, folders)))
