"""Reading jobs from files and standard input, and saying what is wrong with them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtpu_operator.api import documents, validation
from torchtpu_operator.api.documents import MAX_BYTES, DocumentError
from torchtpu_operator.api.faults import Fault
from torchtpu_operator.api.model import TorchTPUJob


class InputError(Exception):
    """What was given cannot be used; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A document that is meant for this operator; `job` None if it has errors."""

    source: str
    index: int
    name: str
    job: TorchTPUJob | None
    faults: list[Fault]

    @property
    def place(self) -> str:
        """`job.yaml:document 2`."""
        return f"{self.source}:document {self.index}"


def read(source: str) -> bytes:
    """Bytes of a file, or of standard input for `-`. Raises InputError."""
    try:
        if source != "-":
            with Path(source).open("rb") as file:
                return file.read(MAX_BYTES + 1)
        if sys.stdin is None:
            raise InputError("-: standard input is closed")
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{printable(source)}: {why}") from None


def check(sources: Sequence[str]) -> list[Checked]:
    """All jobs of all sources, right or wrong. Documents of other kinds are named on standard error and skipped.

    Raises InputError if there is no job at all, or a source cannot be read.
    """
    found = []
    for source in sources:
        shown = "standard input" if source == "-" else printable(source)
        try:
            loaded = documents.load(read(source), shown)
        except DocumentError as error:
            raise InputError(printable(str(error))) from None
        for document in loaded:
            if validation.is_torchtpu(document.value):
                job, faults = validation.check(document.value)
                found.append(Checked(shown, document.index, _name(document.value), job, faults))
            else:
                tell(
                    f"{shown}:document {document.index}: skipped, it is a {printable(str(document.value.get('kind')))}"
                )
    if not found:
        raise InputError(f"no TorchTPUJob in {', '.join(map(printable, sources))}")
    return found


def valid(sources: Sequence[str]) -> list[TorchTPUJob]:
    """All jobs; warnings go to standard error. Raises InputError with all faults if any has an error."""
    checked = check(sources)
    lines = [f"{item.place}: {fault}" for item in checked for fault in item.faults]
    if any(item.job is None for item in checked):
        raise InputError("\n".join(lines))
    for line in lines:
        tell(line)
    return [item.job for item in checked if item.job]


def tell(text: str) -> None:
    """A line on standard error."""
    if sys.stderr is not None:
        sys.stderr.write(text + "\n")


def printable(text: str) -> str:
    """Text with control characters and lone surrogates escaped: what users' files and programs hold may be hostile."""
    return "".join(c if c.isprintable() or c in "\t\n" else c.encode("unicode_escape").decode() for c in text)


def _name(value: object) -> str:
    metadata = value.get("metadata") if isinstance(value, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return printable(name)[:63] if isinstance(name, str) else ""
