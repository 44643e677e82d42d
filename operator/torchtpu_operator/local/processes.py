"""Looking at and ending processes through /proc. Linux only, standard library only."""

import contextlib
import os
import signal
from collections.abc import Iterable
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


def marked(variable: str, value: str) -> list[int]:
    """This user's processes whose environment has `variable=value`."""
    entry = os.fsencode(f"{variable}={value}")
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return [pid for pid in found if start_time(pid) is not None]


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
