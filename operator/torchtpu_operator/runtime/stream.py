"""The driver's output: one rank's log lines with a prefix, at a bounded rate. Standard library only."""

import sys
import time

RESULT_MARK = "TTJ-RESULT"  # begins the driver's last line, for the submitter
BYTES_PER_SECOND = 64 * 1024  # on average; the head keeps the driver's log on its disk
BURST = 4 * 1024 * 1024
CHUNK = 64 * 1024  # bytes asked for at once


def say(text: str) -> None:
    """One line of the driver's own."""
    sys.stdout.write(f"ttj: {text}\n")
    sys.stdout.flush()


class Stream:
    """Follows one rank. Too fast a rank is shown in parts, and how much was left out is said."""

    def __init__(self, rank: int, rate: float = BYTES_PER_SECOND, burst: float = BURST) -> None:
        self.rank = rank
        self._rate, self._burst = rate, burst
        self._allowed = burst
        self._refilled = time.monotonic()
        self.offset = 0  # bytes of the rank's output that are shown or left out
        self._behind = False
        self._partial = b""

    def wanted(self) -> dict[int, int]:
        """What to ask the rank's agent for: {rank: offset}, or nothing for now."""
        now = time.monotonic()
        self._allowed = min(self._burst, self._allowed + (now - self._refilled) * self._rate)
        self._refilled = now
        if self._allowed < CHUNK:
            self._behind = True
            return {}
        return {self.rank: -1 if self._behind else self.offset}

    def take(self, begin: int, data: bytes) -> None:
        """Show output that begins at `begin`."""
        if begin > self.offset:
            self._flush()
            self._line(b"... %d bytes not shown, they are in the rank's log" % (begin - self.offset))
        elif begin < self.offset:  # the end was asked for, and it overlaps what was shown
            data = data[self.offset - begin :]
            begin = self.offset
        self._behind = False
        self.offset = begin + len(data)
        self._allowed -= len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._partial) > CHUNK:
            self._flush()
        sys.stdout.flush()

    def finish(self) -> None:
        """Show a last line without a newline."""
        self._flush()
        sys.stdout.flush()

    def _flush(self) -> None:
        if self._partial:
            self._line(self._partial)
            self._partial = b""

    def _line(self, line: bytes) -> None:
        sys.stdout.write(f"[rank {self.rank}] {line.decode(errors='replace')}\n")
