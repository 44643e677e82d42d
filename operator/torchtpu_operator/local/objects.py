"""Reading what the renderer wrote, as a kubelet reads it: values of variables, mounts, quantities. Pure."""

import math
import os.path
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]

_SUFFIXES = {
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
}
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")


class UnsupportedObject(ValueError):
    """A rendered object that this machine cannot play; the message says which part."""


def quantity(value: str | int | float) -> float:
    """A Kubernetes quantity as a number. Raises UnsupportedObject."""
    match = re.fullmatch(r"([+-]?[\d.]+(?:[eE]-?\d+)?)([a-zA-Z]*)", str(value))
    if not match or (match[2] and match[2] not in _SUFFIXES):
        raise UnsupportedObject(f"{value!r} is not a quantity")
    return float(match[1]) * _SUFFIXES.get(match[2], 1.0)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Kubernetes' `$(NAME)`; an unknown name stays as written, `$$` is a dollar."""
    return _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]), text)


@dataclass(frozen=True, slots=True)
class Mounts:
    """Which folder stands for which path of a container."""

    folders: Mapping[str, Path]

    def path(self, text: str) -> str | None:
        """The folder for a path of the container; None if no mount has it."""
        for mount in sorted(self.folders, key=len, reverse=True):
            if text == mount or text.startswith(mount.rstrip("/") + "/"):
                return os.path.join(self.folders[mount], text[len(mount) :].lstrip("/")).rstrip("/")
        return None

    def text(self, text: str) -> str:
        """A value with every path below a mount replaced, also inside lists and `--flag=/path`."""
        if not self.folders:
            return text
        mounts = "|".join(re.escape(m.rstrip("/")) for m in sorted(self.folders, key=len, reverse=True))
        # A path begins where no name goes on before it, and ends where none goes on after it.
        return re.sub(rf"(?<![\w./-])(?:{mounts})(?![\w.-])", lambda m: str(self.path(m[0]) or m[0]), text)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What the downward API can say of a pod."""

    metadata: Json
    address: str
    resources: Json

    def field(self, path: str) -> str:
        """Value of a fieldRef. Raises UnsupportedObject."""
        if match := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
            return str(self.metadata.get(match[1], {}).get(match[2], ""))
        simple: dict[str, str] = {
            "status.podIP": self.address,
            "status.hostIP": self.address,
            "spec.nodeName": self.metadata["name"],
        }
        simple |= {f"metadata.{key}": str(self.metadata.get(key, "")) for key in ("name", "namespace", "uid")}
        if path not in simple:
            raise UnsupportedObject(f"the downward API's {path!r} is not known here")
        return simple[path]

    def resource(self, reference: Json) -> str:
        """Value of a resourceFieldRef: whole units, rounded up."""
        kind, _, name = str(reference.get("resource", "")).partition(".")
        value = quantity(self.resources.get(kind, {}).get(name, 0))
        return str(math.ceil(value / quantity(reference.get("divisor") or 1)))


def environment(
    entries: Sequence[Json], facts: PodFacts, mounts: Mounts, unknown: Callable[[str, str], str | None]
) -> dict[str, str]:
    """A container's `env`. `unknown(name, source)` gives the value of what only a cluster knows; None leaves it out."""
    result: dict[str, str] = {}
    for entry in entries:
        name, source = entry["name"], entry.get("valueFrom")
        if not source:
            value: str | None = mounts.text(expand(str(entry.get("value") or ""), result))
        elif reference := source.get("fieldRef"):
            value = facts.field(reference["fieldPath"])
        elif reference := source.get("resourceFieldRef"):
            value = facts.resource(reference)
        else:
            kind, reference = next(iter(source.items()))
            value = unknown(name, f"{kind} {reference.get('name', '')}/{reference.get('key', '')}")
        if value is not None:
            result[name] = value
    return result


def ray_start(group: Json, container: Json, head: bool) -> dict[str, str]:
    """Flags of `ray start` that KubeRay would make from the container's resources, the group's and rayStartParams.

    As in KubeRay 1.6, ray-operator/controllers/ray/common/pod.go. `--memory` is left out: nothing limits memory here.
    """
    resources = container.get("resources", {})
    limits = resources.get("limits", {})
    flags: dict[str, str] = {}
    cpu = limits.get("cpu", resources.get("requests", {}).get("cpu"))
    if cpu is not None:
        flags["num-cpus"] = str(math.ceil(quantity(cpu)))
    custom: dict[str, float] = {}
    for name, value in group.get("resources", {}).items():
        if name.lower() == "cpu":
            flags["num-cpus"] = str(math.ceil(quantity(value)))
        elif name.lower() != "memory":
            custom[name] = quantity(value)
    if "google.com/tpu" in limits and "TPU" not in custom:
        custom["TPU"] = quantity(limits["google.com/tpu"])
    if custom:
        items = ", ".join(f'"{name}": {value:g}' for name, value in custom.items())
        flags["resources"] = "{" + items + "}"
    if group.get("labels"):
        flags["labels"] = ",".join(f"{key}={value}" for key, value in group["labels"].items())
    flags |= {key: str(value) for key, value in group.get("rayStartParams", {}).items() if key != "memory"}
    if head:
        flags["head"] = "true"
    return flags | {"block": "true"}


def command_line(flags: Mapping[str, str]) -> list[str]:
    """Flags as words; "true" is a bare flag, "false" none, as KubeRay has it, but for flags that take a boolean."""
    words = []
    for name, value in flags.items():
        if value == "false" and name not in ("include-dashboard", "include-log-monitor", "log-color"):
            continue
        bare = value == "true" and name not in ("include-dashboard", "include-log-monitor", "log-color")
        words.append(f"--{name}" if bare else f"--{name}={value}")
    return words
