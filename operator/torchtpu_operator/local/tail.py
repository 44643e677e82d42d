"""Following a growing log file."""

from collections.abc import Iterator
from pathlib import Path

LINE_LIMIT = 4096
STEP_BYTES = 1 << 18
LAST_BYTES = 1 << 16


class Tail:
    """Lines of a file as they are written; a line without an end waits, unless it is the last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def lines(self, last: bool = False) -> Iterator[str]:
        """Lines that are new since the last call; with `last` all that is left."""
        while data := self._read():
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > LINE_LIMIT:
                lines, self._rest = [*lines, self._rest], b""
            yield from (line[:LINE_LIMIT].decode(errors="replace") for line in lines)
            if not last:
                return
        if last and self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(STEP_BYTES)
        except OSError:
            return b""
        self._offset += len(data)
        return data

    @staticmethod
    def last(path: Path, count: int) -> list[str]:
        """The last lines of a file that are not blank; none if it cannot be read."""
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LAST_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        return [line[:LINE_LIMIT] for line in lines if line.strip()][-count:]
