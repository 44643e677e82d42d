"""Finding and ending the processes of a run."""

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchtpu_operator.runtime.processes import process_stat, processes


def start_time(pid: int) -> str | None:
    """When a process started (clock ticks since boot), so that a reused pid is told apart; None if it is gone."""
    stat = process_stat(pid)
    return stat[1] if stat else None


def marked(variable: str, folder: Path) -> list[int]:
    """This user's processes whose environment has `variable=folder`, or that have a file below the folder open.

    The environment alone is not enough: Ray writes its processes' titles over it.
    """
    entry, below = os.fsencode(f"{variable}={folder}"), f"{folder}/"
    found = []
    for pid in processes():
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{pid}")
            if pid != os.getpid() and (
                entry in (process / "environ").read_bytes().split(b"\0") or any(_opened(process, below))
            ):
                found.append(pid)
    return [pid for pid in found if start_time(pid) is not None]


def _opened(process: Path, below: str) -> Iterator[bool]:
    for link in (process / "cwd", *(process / "fd").iterdir()):
        with contextlib.suppress(OSError):
            yield os.readlink(link).startswith(below)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes that may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
