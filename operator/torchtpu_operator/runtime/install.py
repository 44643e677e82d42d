"""Init container: puts the runtime and the job's files where the other containers find them. Standard library only."""

import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torchtpu_operator
from torchtpu_operator.contract import names

PACKAGES = ("contract", "tpu", "runtime")
SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc")


class InstallError(Exception):
    """The files of the job cannot be written as named."""


def install(target: Path, environment: Mapping[str, str]) -> None:
    """Fill `target`; a second run gives the same. Raises InstallError, OSError."""
    source = Path(torchtpu_operator.__file__).parent
    package = target / source.name
    package.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "__init__.py", package / "__init__.py")
    for name in PACKAGES:
        shutil.copytree(
            source / name, package / name, ignore=SKIPPED, copy_function=shutil.copyfile, dirs_exist_ok=True
        )
    ttj = importlib.util.find_spec("ttj")
    if ttj is None or ttj.origin is None:
        raise InstallError("this image has no ttj.py")
    shutil.copyfile(ttj.origin, target / "ttj.py")
    files = target / "files"
    files.mkdir(exist_ok=True)
    _write_files(files, environment.get(names.ENV_FILES, ""))
    _make_readable(target)
    run = target / "run"
    run.mkdir(exist_ok=True)
    run.chmod(0o777)  # the job's containers may run as any user


def _write_files(folder: Path, text: str) -> None:
    """Write `{path: content}` below `folder`."""
    try:
        files = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise InstallError(f"{names.ENV_FILES} is not JSON: {error}") from error
    root = folder.resolve()
    for name, content in files.items():
        path = (
            root / name
        ).resolve()  # also follows a link that an earlier file could not have made, but a volume could
        if not name or path == root or not path.is_relative_to(root):
            raise InstallError(f"the file {name!r} would lie outside {folder}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def _make_readable(target: Path) -> None:
    """Folders 0755 and files 0644, whatever the umask and the source say; `run` is set by the caller."""
    for folder, subfolders, files in os.walk(target):
        subfolders[:] = [name for name in subfolders if Path(folder) / name != target / "run"]
        if Path(folder) != target:  # a volume's root belongs to somebody else
            Path(folder).chmod(0o755)
        for name in files:
            (Path(folder) / name).chmod(0o644)
