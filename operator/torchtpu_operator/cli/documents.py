"""`ttj validate` and `ttj render`, and how both read files."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from torchtpu_operator.api.documents import MAX_BYTES, Document, DocumentError, load
from torchtpu_operator.api.faults import Fault
from torchtpu_operator.api.model import TorchTPUJob
from torchtpu_operator.api.validation import check, is_torchtpu
from torchtpu_operator.cli import exits
from torchtpu_operator.manifests import rayjob


@dataclass(frozen=True, slots=True)
class Checked:
    """A document, its job if it has no error, and its faults."""

    document: Document
    job: TorchTPUJob | None
    faults: list[Fault]

    @property
    def place(self) -> str:
        """`job.yaml: document 2 (fsdp)`."""
        value = self.document.value
        metadata = value.get("metadata") if isinstance(value, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        known = (
            f" ({name})" if isinstance(name, str) and name.isascii() and name.isprintable() and len(name) < 64 else ""
        )
        return f"{self.document.source}: document {self.document.index}{known}"


def read(file: str) -> list[Checked]:
    """The TorchTPUJobs of a file. Leaves the program with code 2 if there is nothing to read or no job in it."""
    try:
        source, text = ("standard input", _stdin()) if file == "-" else (file, _file(file))
        found = load(text, source)
    except (OSError, DocumentError) as error:
        reason = f"{file}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise exits.invalid(reason) from None
    ours = [document for document in found if is_torchtpu(document.value)]
    for document in found:
        if document not in ours:
            typer.echo(f"{source}: document {document.index} is no TorchTPUJob; skipped", err=True)
    if not ours:
        raise exits.invalid(f"{source}: no TorchTPUJob in it")
    return [Checked(document, *check(document.value)) for document in ours]


def _stdin() -> bytes:
    if sys.stdin is None or sys.stdin.closed:
        return b""
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _file(file: str) -> bytes:
    with Path(file).open("rb") as opened:
        return opened.read(MAX_BYTES + 1)


def jobs(file: str) -> list[TorchTPUJob]:
    """The jobs of a file; leaves the program with code 2 and all faults said if one is wrong."""
    checked = read(file)
    _say(checked, only_faults=True)
    if any(one.job is None for one in checked):
        raise typer.Exit(exits.INVALID)
    return [one.job for one in checked if one.job]


def validate(file: str, output: str | None) -> int:
    """Say the faults of every job; 0 or 2."""
    checked = read(file)
    if output:
        rows = [
            {
                "source": one.document.source,
                "document": one.document.index,
                "valid": one.job is not None,
                "faults": [asdict(fault) for fault in one.faults],
            }
            for one in checked
        ]
        typer.echo(dump(rows, output), nl=False)
    else:
        _say(checked, only_faults=False)
    return exits.INVALID if any(one.job is None for one in checked) else exits.OK


def _say(checked: list[Checked], only_faults: bool) -> None:
    for one in checked:
        if one.job and not only_faults:
            typer.echo(f"{one.place}: ok")
        for fault in one.faults:
            typer.echo(f"{one.place}: {fault}", err=True)


def render(file: str, output: str, attempt: int, runtime_image: str | None) -> int:
    """Write the objects of every job."""
    settings = rayjob.Settings(runtime_image) if runtime_image else rayjob.Settings()
    objects = [made for job in jobs(file) for made in rayjob.render(job, attempt, settings)]
    if output == "json":
        typer.echo(dump(objects, output), nl=False)
    else:
        typer.echo("---\n".join(dump(made, output) for made in objects), nl=False)
    return exits.OK


class _Plain(yaml.CSafeDumper):
    """No anchors: what is the same twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(value: Any, output: str) -> str:
    """A value as YAML or JSON text."""
    if output == "json":
        return json.dumps(value, indent=2) + "\n"
    return str(yaml.dump(value, Dumper=_Plain, sort_keys=False, width=120))
