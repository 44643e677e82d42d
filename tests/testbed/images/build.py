"""Builds the bed's container images with buildah, from this project's Dockerfile, into archives in the cache.

No registry is asked: the base is a Debian made by debootstrap. An image is built again when its sources changed.
"""

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.testbed.cache import TestbedError, cache, say

ROOT = Path(__file__).parents[3]
BASE = "torchtpu-testbed-base:1"
PAUSE = "torchtpu-testbed-pause:1"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
LAYERS_GIB = 10
_CERTIFICATES = "/etc/ssl/certs"  # of this machine, so that a build sees the same authorities


@dataclass(frozen=True, slots=True)
class Image:
    """One target of the Dockerfile: its name in the cluster, what it is made from, seconds of a cold build."""

    name: str
    target: str
    sources: tuple[str, ...]
    seconds: int


_PACKAGE = "operator/torchtpu_operator"
RUNTIME = Image(
    "torchtpu-operator:0.1.0",
    "runtime",
    ("operator/ttj.py", *(f"{_PACKAGE}/{part}" for part in ("__init__.py", "contract", "tpu", "runtime"))),
    20,
)
RUNTIME_CPU = Image(
    "torchtpu-runtime-cpu:0.1.0",
    "runtime-cpu",
    ("requirements/job-cpu.txt", "tests/testbed/images/cuda_stand_ins.py"),
    240,
)


def archives(images: Iterable[Image]) -> list[Path]:
    """Archives of the images and of the pause image, built where needed. Raises TestbedError."""
    folder = cache() / "node" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    found = [_archive(folder, "pause", _digest(_PAUSE_FILE), 10, _build_pause)]
    for image in images:
        key = _digest((ROOT / "Dockerfile").read_text(), BASE_PACKAGES, *map(_content, image.sources))
        found.append(_archive(folder, image.target, key, image.seconds, partial(_build, image)))
    return found


def _archive(folder: Path, name: str, key: str, seconds: int, make: Callable[[Path], None]) -> Path:
    path = folder / f"{name}-{key}.tar"
    if not path.exists():
        say(f"building the image {name} (about {seconds} s; packages come from Debian and PyPI)")
        began = time.monotonic()
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        make(new)
        for old in folder.glob(f"{name}-{'?' * len(key)}.tar"):
            old.unlink()
        new.rename(path)
        _drop_old_layers()
        say(f"built the image {name} in {time.monotonic() - began:.0f} s: {path.stat().st_size / 2**20:.0f} MiB")
    return path


_PAUSE_FILE = """FROM scratch
ADD busybox /bin/busybox
CMD ["/bin/busybox", "sleep", "2147483647"]
"""


def _build_pause(archive: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        raise TestbedError("there is no busybox; install Debian's busybox-static")
    context = _context("pause")
    shutil.copy(busybox, context / "busybox")
    (context / "Dockerfile").write_text(_PAUSE_FILE)
    buildah("build", "-q", "-t", PAUSE, str(context))
    buildah("push", "-q", PAUSE, f"docker-archive:{archive}:{PAUSE}")


def _build(image: Image, archive: Path) -> None:
    _ensure_base()
    mounts = ["-v", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
    arguments = ["--build-arg", f"BASE=localhost/{BASE}", "--layers", "--target", image.target, "-t", image.name]
    buildah("build", "-q", *mounts, *arguments, "-f", str(ROOT / "Dockerfile"), str(ROOT))
    buildah("push", "-q", image.name, f"docker-archive:{archive}:{image.name}")


def _ensure_base() -> None:
    known = buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()
    if f"localhost/{BASE}" in known:
        return
    context = _context("base")
    say("making the base image with debootstrap (about 60 s, 80 MB of Debian packages)")
    _run(["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", str(context / "root")])
    (context / "Dockerfile").write_text('FROM scratch\nCOPY root /\nCMD ["/bin/bash"]\n')
    buildah("build", "-q", "-t", BASE, str(context))
    shutil.rmtree(context)


def _context(name: str) -> Path:
    folder = cache() / "node" / f"context-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _drop_old_layers() -> None:
    """Layers of earlier builds save time at the next, up to a point."""
    used = _run(["du", "-s", "--block-size=1G", str(cache() / "node" / "storage")])
    if int(used.split()[0]) > LAYERS_GIB:
        buildah("rmi", "--prune")


def buildah(*arguments: str) -> str:
    """Output of buildah with its storage in the cache. Raises TestbedError."""
    storage = cache() / "node" / "storage"
    place = ["--root", str(storage / "root"), "--runroot", str(storage / "run"), "--storage-driver", "overlay"]
    return _run(["buildah", *place, *arguments])


def _run(command: list[str]) -> str:
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise TestbedError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise TestbedError(f"{' '.join(command[:1])} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _content(source: str) -> str:
    """Digest of a file, or of the Python files of a folder."""
    path = ROOT / source
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return _digest(*(f"{file.relative_to(ROOT)}\0{file.read_text()}" for file in files))
