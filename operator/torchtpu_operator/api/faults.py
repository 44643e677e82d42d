"""What is wrong with a document, for people and for machines."""

from dataclasses import dataclass
from typing import Any, Literal

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong (or, as a warning, worth a word) and where: `spec.tpu.topology`."""

    path: str
    message: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        prefix = "warning: " if self.severity == "warning" else ""
        return f"{prefix}{self.path}: {self.message}" if self.path else f"{prefix}{self.message}"


def shown(value: Any) -> str:
    """A user's value, quoted, cut and free of control characters."""
    text = (
        ascii(value[: _SHOWN + 1] if isinstance(value, str) else value)
        if isinstance(value, str | int)
        else _kind(value)
    )
    return text if len(text) <= _SHOWN + 2 else text[:_SHOWN] + "...'"


def _kind(value: Any) -> str:
    names = {dict: "a map", list: "a list", bool: "a boolean", float: "a number", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)
