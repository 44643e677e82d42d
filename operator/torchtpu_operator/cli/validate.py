"""`ttj validate`."""

import sys
from collections.abc import Sequence

from torchtpu_operator.cli import sources
from torchtpu_operator.cli.forms import Form, written
from torchtpu_operator.cli.sources import Checked, InputError


def validate(filenames: Sequence[str], form: Form) -> int:
    """Exit code: 0, or 2 if any document has an error."""
    try:
        checked = sources.check(filenames)
    except InputError as error:
        if form != "text":
            fault = {"path": "", "message": str(error), "severity": "error"}
            sys.stdout.write(written([{"document": None, "ok": False, "faults": [fault]}], form))
        else:
            sources.tell(f"error: {error}")
        return 2
    if form != "text":
        sys.stdout.write(written([_record(item) for item in checked], form))
    else:
        sys.stdout.writelines(f"{line}\n" for item in checked for line in _lines(item))
    return 2 if any(item.job is None for item in checked) else 0


def _record(item: Checked) -> dict[str, object]:
    faults = [{"path": f.path, "message": f.message, "severity": f.severity} for f in item.faults]
    return {
        "source": item.source,
        "document": item.index,
        "name": item.name,
        "ok": item.job is not None,
        "faults": faults,
    }


def _lines(item: Checked) -> list[str]:
    words = {"error": "error: ", "warning": ""}  # a warning's own text begins with the word
    lines = [f"{item.place}: {words[fault.severity]}{fault}" for fault in item.faults]
    return lines if item.job is None else [*lines, f"{item.place}: ok ({item.name})"]
