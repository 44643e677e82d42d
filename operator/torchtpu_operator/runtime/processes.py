"""Processes as /proc shows them. Linux only, standard library only."""

import os
from pathlib import Path


def process_stat(pid: int | str) -> tuple[int, str] | None:
    """Parent pid and start time (clock ticks since boot, tells a reused pid) of a process; None: gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else (int(fields[1]), fields[19])


def processes() -> list[int]:
    """Pids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(root: int) -> list[int]:
    """Pids of all living processes below `root`, nearest first."""
    children: dict[int, list[int]] = {}
    for pid in processes():
        if stat := process_stat(pid):
            children.setdefault(stat[0], []).append(pid)
    found, level = [], [root]
    while level:
        level = [child for pid in level for child in children.get(pid, [])]
        found += level
    return found
