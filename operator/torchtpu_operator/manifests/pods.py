"""The three pod templates of a job: head, TPU host, submitter."""

import json
from dataclasses import dataclass
from typing import Any

from torchtpu_operator.api.model import Pod, TorchTPUJob, Volume
from torchtpu_operator.contract import names, ports
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.manifests.overlay import overlay
from torchtpu_operator.manifests.resources import Resources, head_resources, shared_memory, worker_resources
from torchtpu_operator.manifests.scheduling import scheduling
from torchtpu_operator.tpu.environment import pod_environment
from torchtpu_operator.tpu.slices import SliceShape

Manifest = dict[str, Any]

DEFAULT_TERMINATION_S = 60
PRE_STOP_MARGIN_S = 15  # of the termination period that the ranks do not get: Ray's own shutdown
_SHM_VOLUME = "dshm"
_PYTHON = ["python", "-m", names.RUNTIME_MODULE]
DRIVE_COMMAND = " ".join([*_PYTHON, "drive"])


@dataclass(frozen=True, slots=True)
class Context:
    """What every template of one rendering shares."""

    job: TorchTPUJob
    shape: SliceShape
    labels: dict[str, str]
    runtime_image: str
    chips: bool  # whether TPU chips are requested
    trial: bool  # whether ranks run on CPU, wherever they are put

    @property
    def stop_grace_s(self) -> int:
        """Seconds that ranks get between SIGTERM and SIGKILL: what the worker's termination period leaves."""
        template = (self.job.spec.worker and self.job.spec.worker.template) or {}
        period = template.get("spec", {}).get("terminationGracePeriodSeconds", DEFAULT_TERMINATION_S)
        return max(5, int(period) - PRE_STOP_MARGIN_S) if isinstance(period, int) else 45


def head_template(context: Context, spec: JobSpec) -> Manifest:
    """The Ray head: no ranks, the driver."""
    resources = _requested(head_resources(context.shape.hosts * spec.slices, context.trial), context.job.spec.head)
    grace = context.stop_grace_s
    own = [
        {"name": names.ENV_JOB, "value": _literal(spec.to_json())},
        {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(grace + 5)},  # Ray's own 3 s would cut the ranks' grace
        *_pairs(_per_chip(context.shape)),
    ]
    container = _ray_container(context, names.HEAD_CONTAINER, own, resources)
    container["ports"] = [
        _port("gcs-server", ports.RAY_GCS),
        _port("dashboard", ports.RAY_DASHBOARD),
        _port("client", ports.RAY_CLIENT),
        _port("metrics", ports.RAY_METRICS),
    ]
    pod = _ray_pod(context, container, resources)
    pod["terminationGracePeriodSeconds"] = grace + 2 * PRE_STOP_MARGIN_S
    return _changed(_template(context, pod), context.job.spec.head)


def worker_template(context: Context) -> Manifest:
    """A TPU host."""
    resources = _requested(worker_resources(context.shape, context.chips, context.trial), context.job.spec.worker)
    own = [
        *_identity(context.shape),
        *_pairs(pod_environment(context.shape)),
        _from_label(names.ENV_SLICE_INDEX, names.LABEL_REPLICA_INDEX),
        {"name": names.ENV_POD_STDOUT, "value": "/proc/1/fd/1"},
    ]
    container = _ray_container(context, names.WORKER_CONTAINER, own, resources)
    container["ports"] = [_port("metrics", ports.RAY_METRICS)]
    pod = _ray_pod(context, container, resources)
    pod["terminationGracePeriodSeconds"] = context.stop_grace_s + PRE_STOP_MARGIN_S
    if context.chips:
        pod |= scheduling(context.shape)
    return _changed(_template(context, pod), context.job.spec.worker)


def submitter_template(context: Context) -> Manifest:
    """The pod that submits the driver once and leaves the cause; KubeRay adds address, id and token."""
    container = {
        "name": names.SUBMITTER_CONTAINER,
        "image": context.job.spec.runtime.image,
        "command": [*_PYTHON, "submit"],
        "env": _pairs({"PYTHONPATH": names.RUNTIME_PATH, "PYTHONUNBUFFERED": "1"}),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": names.RUNTIME_VOLUME, "mountPath": names.RUNTIME_PATH}],
    }
    return _template(context, _pod(context, container, [_runtime_volume()]))


def _ray_pod(context: Context, container: Manifest, resources: Resources) -> Manifest:
    shm: Manifest = {"medium": "Memory"}
    if size := shared_memory(resources):
        shm["sizeLimit"] = size
    volumes = [_runtime_volume(), {"name": _SHM_VOLUME, "emptyDir": shm}]
    return _pod(context, container, volumes + [_volume(volume) for volume in context.job.spec.runtime.volumes])


def _pod(context: Context, container: Manifest, volumes: list[Manifest]) -> Manifest:
    account = context.job.spec.runtime.service_account_name
    identity = {"serviceAccountName": account} if account else {"automountServiceAccountToken": False}
    return {
        "restartPolicy": "Never",
        **identity,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [_install_container(context)],
        "containers": [container],
        "volumes": volumes,
    }


def _install_container(context: Context) -> Manifest:
    container: Manifest = {
        "name": names.RUNTIME_VOLUME,
        "image": context.runtime_image,
        "command": [*_PYTHON, "install"],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": names.RUNTIME_VOLUME, "mountPath": names.RUNTIME_PATH}],
    }
    if files := context.job.spec.runtime.files:
        container["env"] = [{"name": names.ENV_FILES, "value": _literal(_json(files))}]
    return container


def _ray_container(context: Context, name: str, own: list[Manifest], resources: Resources) -> Manifest:
    runtime = context.job.spec.runtime
    mounts = [
        {"name": names.RUNTIME_VOLUME, "mountPath": names.RUNTIME_PATH},
        {"name": _SHM_VOLUME, "mountPath": "/dev/shm"},  # noqa: S108 - a path in the pod
    ]
    container: Manifest = {
        "name": name,
        "image": runtime.image,
        "env": _user_environment(context.job)
        + _pairs({names.ENV_RUN_DIR: names.RUN_PATH, "PYTHONUNBUFFERED": "1"})
        + own,
        "resources": resources,
        "securityContext": {"allowPrivilegeEscalation": False},
        "lifecycle": {"preStop": {"exec": {"command": [*_PYTHON, "stop"]}}},
        "volumeMounts": mounts + [_mount(volume) for volume in runtime.volumes],
    }
    if runtime.env_from:
        container["envFrom"] = runtime.env_from
    return container


def _user_environment(job: TorchTPUJob) -> list[Manifest]:
    """The user's variables; the runtime comes first on PYTHONPATH, whatever they put there."""
    result, path = [], names.RUNTIME_PATH
    for variable in job.spec.runtime.env:
        if variable.name == "PYTHONPATH" and variable.value is not None:
            path = f"{names.RUNTIME_PATH}:{variable.value}"
        elif variable.name != "PYTHONUNBUFFERED":
            result.append(variable.model_dump(by_alias=True, exclude_none=True))
    return [*result, {"name": "PYTHONPATH", "value": path}]


def _identity(shape: SliceShape) -> list[Manifest]:
    """Several hosts: KubeRay's labels; one host carries no host index, and an empty id would be worse than none."""
    if shape.multi_host:
        return [
            _from_label("TPU_WORKER_ID", names.LABEL_HOST_INDEX),
            _from_label("TPU_NAME", names.LABEL_REPLICA_NAME),
        ]
    return [
        {"name": "TPU_WORKER_ID", "value": "0"},
        {"name": "TPU_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]


def _per_chip(shape: SliceShape) -> dict[str, str]:
    """RAY_TPU_RESOURCE_PER_CHIP must be the same on every node, the driver's included."""
    return {key: value for key, value in pod_environment(shape).items() if key.startswith("RAY_")}


def _volume(volume: Volume) -> Manifest:
    data = volume.model_dump(by_alias=True, exclude_none=True)
    if volume.gcs_fuse:
        attributes = {"bucketName": volume.gcs_fuse.bucket}
        if volume.gcs_fuse.mount_options:
            attributes["mountOptions"] = volume.gcs_fuse.mount_options
        csi = {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": volume.read_only, "volumeAttributes": attributes}
        return {"name": volume.name, "csi": csi}
    return {key: value for key, value in data.items() if key not in ("mountPath", "subPath", "readOnly")}


def _mount(volume: Volume) -> Manifest:
    mount: Manifest = {"name": volume.name, "mountPath": volume.mount_path}
    if volume.sub_path:
        mount["subPath"] = volume.sub_path
    if volume.read_only:
        mount["readOnly"] = True
    return mount


def _template(context: Context, pod: Manifest) -> Manifest:
    metadata: Manifest = {"labels": dict(context.labels)}
    if any(volume.gcs_fuse for volume in context.job.spec.runtime.volumes):
        metadata["annotations"] = {"gke-gcsfuse/volumes": "true"}
    return {"metadata": metadata, "spec": pod}


def _changed(template: Manifest, pod: Pod | None) -> Manifest:
    change = pod.template if pod and pod.template else {}
    result: Manifest = overlay(template, change)
    return result


def _requested(defaults: Resources, pod: Pod | None) -> Resources:
    given = pod.resources.model_dump() if pod and pod.resources else {}
    return {part: amounts | given.get(part, {}) for part, amounts in defaults.items()}


def _runtime_volume() -> Manifest:
    return {"name": names.RUNTIME_VOLUME, "emptyDir": {}}


def _from_label(name: str, label: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}


def _pairs(environment: dict[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in environment.items()]


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "containerPort": number}


def _literal(text: str) -> str:
    """As it stands: the kubelet would take $(NAME) in a value for a reference, and $$ for a dollar."""
    return text.replace("$", "$$")


def _json(value: dict[str, str]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
