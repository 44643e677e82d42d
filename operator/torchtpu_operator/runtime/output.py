"""Where a rank's output goes: a bounded log file, and the pod's own log with a prefix. Standard library only."""

import contextlib
import os
from pathlib import Path

LOG_LIMIT = 64 * 1024 * 1024  # bytes of one file; a rank keeps the current and the previous one
LINE_LIMIT = 64 * 1024  # a longer line goes to the pod's log in pieces
PENDING_LIMIT = 1024 * 1024  # bytes held back, about, for a pod log that does not take them; more are dropped


class RankLog:
    """Bounded log of one rank: `path` and, before it, `path`.1. A full disk loses output, never the rank."""

    def __init__(self, path: Path, limit: int = LOG_LIMIT) -> None:
        self.path = path
        self.limit = limit
        self.base = 0  # bytes written before the current file began
        self._size = 0
        self._fd = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, data: bytes) -> bool:
        """Append; True if this began a new file."""
        rotated = self._size >= self.limit
        try:
            if rotated:
                self._rotate()
            while data:
                written = os.write(self._fd, data)
                self._size += written
                data = data[written:]
        except OSError:
            self._size += len(data)  # as if written: a full disk must still rotate, and thereby free space
        return rotated

    def _rotate(self) -> None:
        os.replace(self.path, f"{self.path}.1")
        os.close(self._fd)
        self._fd = self._open()
        self.base += self._size
        self._size = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_log(path: Path, base: int, previous: int, offset: int, limit: int) -> tuple[int, bytes]:
    """At most `limit` bytes of a rank's output from `offset` on, and the offset they really begin at.

    `base` and `previous` are the offsets at which the current and the previous file begin. What was rotated away is
    skipped.
    """
    offset = max(offset, previous)
    source, start = (path, base) if offset >= base else (Path(f"{path}.1"), previous)
    try:
        with source.open("rb") as file:
            file.seek(offset - start)
            data = file.read(limit if offset >= base else min(limit, base - offset))
    except OSError:
        return offset, b""
    return offset, data


class PodLog:
    """The pod's log: lines as `[rank 3] …`. Never blocks: what the reader does not take is dropped and counted."""

    def __init__(self, path: str | None) -> None:
        self._pending = b""
        self._dropped = 0
        self._partial: dict[int, bytes] = {}
        self._fd = -1
        if path:
            with contextlib.suppress(OSError):  # no pod log is no reason not to run
                # Opened anew, so that O_NONBLOCK does not change the container's own standard output.
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def pending(self) -> bool:
        """Whether lines wait for the reader."""
        return bool(self._pending)

    def write(self, rank: int, data: bytes) -> None:
        """Take output of a rank; whole lines go on."""
        if self._fd < 0:
            return
        self.flush()
        if len(self._pending) + len(data) > PENDING_LIMIT:
            self._dropped += len(data) + len(self._partial.pop(rank, b""))
            return
        lines, newline, rest = (self._partial.get(rank, b"") + data).rpartition(b"\n")
        if len(rest) > LINE_LIMIT:
            lines, newline, rest = lines + newline + rest, b"\n", b""
        self._partial[rank] = rest
        if newline:
            self._queue(rank, lines)

    def finish(self, rank: int) -> None:
        """Write a last line that has no newline."""
        if self._partial.get(rank):
            self.write(rank, b"\n")

    def _queue(self, rank: int, lines: bytes) -> None:
        if self._dropped:
            self._pending += b"[launcher] %d bytes of output dropped: the pod's log is too slow\n" % self._dropped
            self._dropped = 0
        prefix = b"[rank %d] " % rank
        self._pending += prefix + lines.replace(b"\n", b"\n" + prefix) + b"\n"
        self.flush()

    def flush(self) -> None:
        """Hand on what the reader takes now."""
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._fd, self._pending[:65536]) :]
        except BlockingIOError:
            pass
        except OSError:
            self._pending = b""
