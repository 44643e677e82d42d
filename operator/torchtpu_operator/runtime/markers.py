"""Files in the run directory by which a pod's preStop hook, launcher and driver know of each other.

`stop`: whoever sees it stops gracefully. `busy-<pid>`: that process still works here; its content is the process's
start time, so that a reused pid does not count. Standard library only.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from torchtpu_operator.runtime.processes import process_stat

STOP_FILE = "stop"
POLL_S = 0.2


def stop_requested(run_dir: Path) -> bool:
    """Whether this pod was asked to stop."""
    return (run_dir / STOP_FILE).exists()


@contextlib.contextmanager
def busy(run_dir: Path) -> Iterator[None]:
    """Mark this process as working in `run_dir`; a folder that cannot be written marks nothing."""
    marker = run_dir / f"busy-{os.getpid()}"
    stat = process_stat(os.getpid())
    with contextlib.suppress(OSError):
        marker.write_text(stat[1] if stat else "")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            marker.unlink()


def busy_processes(run_dir: Path) -> list[int]:
    """Pids of the processes that still work in `run_dir`."""
    alive = []
    for marker in run_dir.glob("busy-*"):
        pid = marker.name.removeprefix("busy-")
        try:
            started = marker.read_text()
        except OSError:
            continue
        stat = process_stat(pid)
        if stat and started in ("", stat[1]):
            alive.append(int(pid))
    return sorted(alive)


def stop(run_dir: Path, timeout_s: float) -> bool:
    """Ask everything in this pod to stop and wait; True if nothing works here any more."""
    with contextlib.suppress(OSError):
        (run_dir / STOP_FILE).touch()
    deadline = time.monotonic() + timeout_s
    while busy_processes(run_dir):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
