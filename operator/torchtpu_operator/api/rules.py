"""What spans fields or needs arithmetic, as one table: field path, check, message. CEL is to come from the same table.

A check yields (path below the rule's own, message) for each fault; an empty path means the rule's own.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torchtpu_operator.api.faults import Fault, shown
from torchtpu_operator.api.model import (
    MAX_ENTRYPOINT_BYTES,
    MAX_FILES_BYTES,
    VOLUME_SOURCES,
    Pod,
    TorchTPUJob,
)
from torchtpu_operator.contract import names
from torchtpu_operator.tpu.environment import IDENTITY_VARIABLES, address_list_too_large
from torchtpu_operator.tpu.ranks import world_size
from torchtpu_operator.tpu.slices import ShapeError, check_slices

Found = Iterator[tuple[str, str]]

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FILE_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*", re.ASCII)
_RAY_OWN = frozenset({"RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_EXPERIMENTAL_NOSET_TPU_VISIBLE_CHIPS"})
_OUR_VOLUMES = (names.RUNTIME_VOLUME, "dshm")
_OUR_PATHS = (names.RUNTIME_PATH, "/dev/shm")  # noqa: S108 - a path in the pod
_OUR_LABELS = ("ray.io/", f"{names.GROUP}/", "app.kubernetes.io/name")


@dataclass(frozen=True, slots=True)
class Rule:
    """`check` yields what is wrong with a job that already has the right form."""

    path: str
    check: Callable[[TorchTPUJob], Found]
    severity: Literal["error", "warning"] = "error"


def apply(job: TorchTPUJob) -> list[Fault]:
    """All faults that the table finds."""
    return [Fault(rule.path + below, message, rule.severity) for rule in RULES for below, message in rule.check(job)]


def _name(job: TorchTPUJob) -> Found:
    name = job.metadata.name
    if not _DNS_1035.fullmatch(name):
        better = re.sub(r"[^a-z0-9]+", "-", name.lower(), flags=re.ASCII).lstrip("-0123456789")[:63].strip("-")
        hint = f"; for example {better}" if better else ""
        yield "", f"{shown(name)} must be 1 to 63 of a-z, 0-9 and '-', beginning with a letter, not ending in '-'{hint}"


def _keep_scheduling(job: TorchTPUJob) -> Found:
    value = job.metadata.annotations.get(names.ANNOTATION_KEEP_TPU_SCHEDULING)
    if value not in (None, "true", "false"):
        yield f"[{names.ANNOTATION_KEEP_TPU_SCHEDULING}]", f'must be "true" or "false", got {shown(value)}'


def _shape(job: TorchTPUJob) -> Found:
    try:
        check_slices(job.spec.tpu.shape, job.spec.tpu.slices)
    except ShapeError as error:
        yield f".{error.field}", error.message


def _shape_warnings(job: TorchTPUJob) -> Found:
    try:
        shape = job.spec.tpu.shape
    except ShapeError:
        return
    for warning in shape.warnings:
        yield ".topology", warning
    if address_list_too_large(shape):
        yield (
            ".topology",
            (
                f"the addresses of {shape.devices} devices do not fit one environment variable (128 KiB): a process "
                "per device cannot be started at this size"
            ),
        )


def _torch_xla_on_cpu(job: TorchTPUJob) -> Found:
    if (job.spec.runtime.framework, job.spec.runtime.device) != ("TorchXLA", "CPU"):
        return
    try:
        ranks = world_size(job.spec.tpu.shape, job.spec.tpu.slices)
    except ShapeError:
        return
    if ranks > 1:
        yield (
            "",
            (
                f"TorchXLA with device CPU and {ranks} ranks: torch_xla's all-reduce between processes on CPU is "
                "silently wrong; use framework TorchTPU, which runs gloo on CPU, or a one-chip topology"
            ),
        )


def _entrypoint(job: TorchTPUJob) -> Found:
    words = job.spec.runtime.entrypoint
    size = sum(len(word.encode("utf-8", "surrogatepass")) for word in words)
    if size > MAX_ENTRYPOINT_BYTES:
        yield "", f"{size:,} bytes; at most {MAX_ENTRYPOINT_BYTES:,}"
    if not words[0]:
        yield "[0]", "must name a program"
    for i, word in enumerate(words):
        if "\0" in word:
            yield f"[{i}]", "holds a NUL character, which no program can be given"


def _environment(job: TorchTPUJob) -> Found:
    counted = Counter(variable.name for variable in job.spec.runtime.env)
    for name, count in counted.items():
        if count > 1:
            yield "", f"{shown(name)} stands {count} times; once is enough"
    for i, variable in enumerate(job.spec.runtime.env):
        if reason := _refused_variable(variable.name):
            yield f"[{i}].name", reason
        if variable.value is not None and variable.value_from is not None:
            yield f"[{i}]", "has both value and valueFrom; give one"
        if variable.value is not None and "\0" in variable.value:
            yield f"[{i}].value", "holds a NUL character"


def _refused_variable(name: str) -> str | None:
    if not _ENV_NAME.fullmatch(name):
        return f"{shown(name)} is not a name of letters, digits and '_' that begins with no digit"
    if name in IDENTITY_VARIABLES:
        return f"{name} tells a process which rank or chip it is; the runtime sets it per process, so remove it"
    if name.startswith(names.ENV_PREFIX):
        return f"{name}: variables that begin with {names.ENV_PREFIX} are the runtime's; choose another name"
    if name in _RAY_OWN:
        return f"{name} is set by KubeRay or must stay unset for TPU placement; remove it"
    return None


def _files(job: TorchTPUJob) -> Found:
    files = job.spec.runtime.files
    for path in files:
        if len(path) > 253 or not _FILE_PATH.fullmatch(path):
            yield f"[{shown(path)}]", "must be a relative path of letters, digits, '_', '-', '.' without '..'"
        elif any(other.startswith(path + "/") for other in files):
            yield f"[{shown(path)}]", "is a file here and a folder of another file"
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in files.values())
    if size > MAX_FILES_BYTES:
        yield "", f"{size:,} bytes in all; at most {MAX_FILES_BYTES:,}: put more into the image or a volume"


def _working_dir(job: TorchTPUJob) -> Found:
    folder = job.spec.runtime.working_dir
    if folder is None:
        return
    if not folder.startswith("/") or ".." in folder.split("/"):
        yield "", f"{shown(folder)} must be an absolute path without '..'"
    if job.spec.runtime.files:
        yield "", "files are given too, and their folder is the working directory; remove one of the two"


def _volumes(job: TorchTPUJob) -> Found:
    volumes = job.spec.runtime.volumes
    for what, values in (("name", [v.name for v in volumes]), ("mountPath", [v.mount_path for v in volumes])):
        for value, count in Counter(values).items():
            if count > 1:
                yield "", f"{what} {shown(value)} stands {count} times"
    for i, volume in enumerate(volumes):
        given = volume.model_dump(by_alias=True, exclude_none=True).keys() & set(VOLUME_SOURCES)
        if len(given) != 1:
            have = f"has {', '.join(sorted(given))}" if given else "has no source"
            yield f"[{i}]", f"{have}; give exactly one of {', '.join(VOLUME_SOURCES)}"
        if volume.name in _OUR_VOLUMES:
            yield f"[{i}].name", f"{volume.name} is the operator's own; choose another name"
        yield from ((f"[{i}].mountPath", message) for message in _bad_mount(volume.mount_path))


def _bad_mount(path: str) -> Iterator[str]:
    if not path.startswith("/") or path == "/" or ".." in path.split("/") or ":" in path:
        yield f"{shown(path)} must be an absolute path below / without '..' and ':'"
    elif any(f"{path.rstrip('/')}/".startswith(f"{own}/") for own in _OUR_PATHS):
        yield f"{shown(path)} is the operator's own; mount elsewhere"


def _override(which: Literal["head", "worker"]) -> Callable[[TorchTPUJob], Found]:
    def check(job: TorchTPUJob) -> Found:
        pod: Pod | None = getattr(job.spec, which)
        if pod is None:
            return
        if pod.resources is not None and which == "worker":
            for part in ("requests", "limits"):
                if "google.com/tpu" in getattr(pod.resources, part):
                    yield f".resources.{part}", "google.com/tpu follows from spec.tpu; remove it"
        if pod.template is not None:
            yield from _template(pod.template)

    return check


def _template(template: dict[str, Any]) -> Found:
    for key in template:
        if key not in ("metadata", "spec"):
            yield f".template.{shown(key)}", "a pod template has metadata and spec"
    yield from ((f".template.metadata{below}", why) for below, why in _template_metadata(template.get("metadata", {})))
    yield from ((f".template.spec{below}", why) for below, why in _template_spec(template.get("spec", {})))


def _template_metadata(metadata: Any) -> Found:
    if not isinstance(metadata, dict) or not isinstance(metadata.get("labels", {}), dict):
        yield "", "must be a map, and labels in it too"
        return
    for label in metadata.get("labels", {}):
        if str(label).startswith(_OUR_LABELS):
            yield f".labels[{shown(label)}]", "is KubeRay's or the operator's own; remove it"


def _template_spec(spec: Any) -> Found:
    if not isinstance(spec, dict):
        yield "", "must be a map"
        return
    if "restartPolicy" in spec:
        yield ".restartPolicy", "is always Never: a Ray container that restarts in place breaks its slice"
    for part in ("containers", "initContainers", "volumes"):
        if part in spec:
            yield from ((f".{part}{below}", why) for below, why in _named_list(spec[part]))
    containers = spec.get("containers")
    for i, container in enumerate(containers if isinstance(containers, list) else []):
        yield from ((f".containers[{i}]{below}", why) for below, why in _container(container))


def _named_list(value: Any) -> Found:
    if not isinstance(value, list):
        yield "", "must be a list"
        return
    for i, item in enumerate(value):
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            yield f"[{i}]", "must be a map with a name, by which it is merged"


def _container(container: Any) -> Found:
    if not isinstance(container, dict):
        return
    env = container.get("env", [])
    if "env" in container:
        yield from ((f".env{below}", why) for below, why in _named_list(env))
    if container.get("name") in (names.HEAD_CONTAINER, names.WORKER_CONTAINER) and isinstance(env, list):
        for i, variable in enumerate(env):
            name = variable.get("name") if isinstance(variable, dict) else None
            if isinstance(name, str) and (reason := _refused_variable(name)):
                yield f".env[{i}].name", reason


RULES: tuple[Rule, ...] = (
    Rule("metadata.name", _name),
    Rule("metadata.annotations", _keep_scheduling),
    Rule("spec.tpu", _shape),
    Rule("spec.tpu", _shape_warnings, "warning"),
    Rule("spec.runtime.framework", _torch_xla_on_cpu),
    Rule("spec.runtime.entrypoint", _entrypoint),
    Rule("spec.runtime.env", _environment),
    Rule("spec.runtime.files", _files),
    Rule("spec.runtime.workingDir", _working_dir),
    Rule("spec.runtime.volumes", _volumes),
    Rule("spec.head", _override("head")),
    Rule("spec.worker", _override("worker")),
)
