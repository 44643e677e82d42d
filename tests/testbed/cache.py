"""The one folder outside the tree that holds what the test bed built and fetched."""

import os
import shutil
import sys
from pathlib import Path

VARIABLE = "TTJ_TESTBED_CACHE"


class TestbedError(Exception):
    """The bed cannot do what was asked; the message says why and what to do."""

    __test__ = False


def cache() -> Path:
    """$TTJ_TESTBED_CACHE, else /var/cache/torchtpu-testbed for root and ~/.cache/torchtpu-testbed for others."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).absolute()
    if os.getuid() == 0:
        return Path("/var/cache/torchtpu-testbed")
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "torchtpu-testbed"


def binary(name: str) -> Path:
    """Where a built program lies."""
    return cache() / "bin" / name


def share(component: str) -> Path:
    """Where files of a component's module lie: CRDs, stages."""
    return cache() / "share" / component


def require_disk(needed_gib: float, what: str) -> None:
    """Raises TestbedError unless the cache's file system has that much free."""
    folder = cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TestbedError(f"{folder} cannot be made: {error.strerror}; choose another with {VARIABLE}") from None
    free = shutil.disk_usage(folder).free / 2**30
    if free < needed_gib:
        raise TestbedError(
            f"{folder} has {free:.1f} GiB free, {what} needs {needed_gib:g}; make room or set {VARIABLE}"
        )


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"== {text}\n")
    sys.stderr.flush()
