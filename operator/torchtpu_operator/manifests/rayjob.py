"""The RayJob of one attempt."""

from dataclasses import dataclass
from typing import Any

from torchtpu_operator import __version__
from torchtpu_operator.api.model import TorchTPUJob
from torchtpu_operator.contract import names, ports, versions
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.manifests.names import child_name
from torchtpu_operator.manifests.pods import DRIVE_COMMAND, Context, head_template, submitter_template, worker_template

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the installation decides, not the job: the image that carries the runtime."""

    runtime_image: str = f"torchtpu-operator:{__version__}"


def render(job: TorchTPUJob, attempt: int = 1, settings: Settings = Settings()) -> list[Manifest]:
    """The objects of one attempt. Raises ShapeError for a slice that does not exist; validate first."""
    shape, runtime = job.spec.tpu.shape, job.spec.runtime
    keep = job.metadata.annotations.get(names.ANNOTATION_KEEP_TPU_SCHEDULING) == "true"
    labels = {names.LABEL_JOB_NAME: job.metadata.name, names.LABEL_ATTEMPT: str(attempt)}
    if job.metadata.uid:
        labels[names.LABEL_JOB_UID] = job.metadata.uid
    trial = runtime.device == "CPU"
    context = Context(job, shape, labels, settings.runtime_image, chips=keep or not trial, trial=trial)
    spec = JobSpec(
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        uid=job.metadata.uid or job.metadata.name,
        attempt=attempt,
        framework=runtime.framework,
        device=runtime.device,
        accelerator=job.spec.tpu.accelerator,
        topology=shape.topology,
        chips_per_host=shape.chips_per_host,
        slices=job.spec.tpu.slices,
        entrypoint=tuple(runtime.entrypoint),
        working_dir=names.FILES_PATH if runtime.files else runtime.working_dir,
        stop_grace_s=context.stop_grace_s,
    )
    return [
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": _metadata(job, attempt, labels),
            "spec": {
                "submissionMode": "K8sJobMode",
                "entrypoint": DRIVE_COMMAND,
                "backoffLimit": 0,
                "submitterConfig": {"backoffLimit": 0},
                "shutdownAfterJobFinishes": True,
                "ttlSecondsAfterFinished": 0,
                "submitterPodTemplate": submitter_template(context),
                "rayClusterSpec": {
                    "rayVersion": versions.RAY_VERSION,
                    "authOptions": {"mode": "token"},
                    "headGroupSpec": {
                        "rayStartParams": {"num-cpus": "0", "metrics-export-port": str(ports.RAY_METRICS)},
                        "template": head_template(context, spec),
                    },
                    "workerGroupSpecs": [_tpu_group(context)],
                },
            },
        }
    ]


def _metadata(job: TorchTPUJob, attempt: int, labels: dict[str, str]) -> Manifest:
    metadata: Manifest = {
        "name": child_name(job.metadata.name, attempt),
        "namespace": job.metadata.namespace,
        "labels": {**labels, "app.kubernetes.io/managed-by": "torchtpu-operator"},
        # a head that came back would not know the driver; the attempt is over instead
        "annotations": {"ray.io/disable-provisioned-head-restart": "true"},
    }
    if job.metadata.uid:
        metadata["ownerReferences"] = [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": job.metadata.name,
                "uid": job.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    return metadata


def _tpu_group(context: Context) -> Manifest:
    """One replica is one slice. `resources` is what Ray counts: devices, also where they are CPUs."""
    slices, devices = context.job.spec.tpu.slices, context.shape.devices_per_host
    resources = {"TPU": str(devices)}
    if context.trial:
        resources["CPU"] = str(devices + 1)
    return {
        "groupName": names.TPU_GROUP,
        "replicas": slices,
        "minReplicas": slices,
        "maxReplicas": slices,
        "numOfHosts": context.shape.hosts,
        "resources": resources,
        "rayStartParams": {"metrics-export-port": str(ports.RAY_METRICS)},
        "template": worker_template(context),
    }
