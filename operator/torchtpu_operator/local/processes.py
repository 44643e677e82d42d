"""Looking at and ending processes through /proc. Linux only, standard library only."""

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path


def start_time(pid: int) -> str | None:
    """When a process started (clock ticks since boot), so that a reused pid is told apart; None if it is gone."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else None


def descendants(root: int) -> list[int]:
    """All processes below `root`, nearest first; zombies left out."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    found, level = [], [root]
    while level:
        level = [child for pid in level for child in children.get(pid, [])]
        found += level
    return [pid for pid in found if start_time(pid) is not None]


def marked(variable: str, folder: Path) -> list[int]:
    """This user's processes whose environment has `variable=folder`, or that have a file below the folder open.

    The environment alone is not enough: Ray writes its processes' titles over it.
    """
    entry, below = os.fsencode(f"{variable}={folder}"), f"{folder}/"
    found = []
    for pid in _pids():
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


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
