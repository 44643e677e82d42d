"""The TorchTPUJob as people write it. The descriptions become the CRD's; what spans fields is in `rules`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt
from pydantic.alias_generators import to_camel

from torchtpu_operator.contract.names import API_VERSION, KIND
from torchtpu_operator.tpu.slices import MAX_SLICES, SliceShape, slice_shape

FreeForm = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
Quantity = Annotated[
    StrictInt | Annotated[str, Field(max_length=32)], Field(json_schema_extra={"x-kubernetes-int-or-string": True})
]
Text = Annotated[str, Field(max_length=4096)]
MAX_FILES_BYTES = 32 * 1024
MAX_ENTRYPOINT_BYTES = 32 * 1024


class Model(BaseModel):
    """Camel-case names, no unknown fields."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, frozen=True)


class Metadata(BaseModel):
    """What of Kubernetes' metadata matters here; the rest is left to Kubernetes."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    namespace: str = "default"
    uid: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Tpu(Model):
    """The TPU slices that the job runs on."""

    accelerator: Literal["v4", "v5e", "v5p", "v6e", "v7x"] = Field(description="TPU generation.")
    topology: str = Field(max_length=16, description="Chips along each dimension, as GKE writes it: 4x4, 2x2x4.")
    slices: StrictInt = Field(1, ge=1, le=MAX_SLICES, description="Slices, joined over DCN when there are several.")
    chips_per_host: Literal[1, 4, 8] | None = Field(
        None, description="Chips of one host. Only v5e and v6e 2x4 leave a choice: one host of 8 (default) or two of 4."
    )

    @property
    def shape(self) -> SliceShape:
        """One slice. Raises ShapeError where GKE has no such slice."""
        return slice_shape(self.accelerator, self.topology, self.chips_per_host)


class EnvVar(Model):
    """An environment variable of the ranks, as in a container."""

    name: str = Field(min_length=1, max_length=256, description="Name of the variable.")
    value: str | None = Field(None, max_length=32768, description="Its value.")
    value_from: FreeForm | None = Field(None, description="Where its value comes from, as in a container.")


class Claim(Model):
    """A PersistentVolumeClaim in the job's namespace."""

    claim_name: str = Field(max_length=253, description="Name of the claim.")


class EmptyDir(Model):
    """A folder that lives as long as the pod."""

    medium: Literal["", "Memory"] = Field("", description="Memory for a RAM disk.")
    size_limit: Quantity | None = Field(None, description="Largest size.")


class ConfigMap(Model):
    """A ConfigMap as files."""

    name: str = Field(max_length=253, description="Name of the ConfigMap.")


class Secret(Model):
    """A Secret as files."""

    secret_name: str = Field(max_length=253, description="Name of the Secret.")


class GcsFuse(Model):
    """A Cloud Storage bucket through GKE's GCS FUSE driver; needs a service account that may use it."""

    bucket: str = Field(max_length=222, description="Name of the bucket.")
    mount_options: str | None = Field(None, max_length=1024, description="Comma-separated options of the driver.")


class Volume(Model):
    """A volume, mounted at one path into head and workers; exactly one source."""

    name: str = Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="Name of the volume.")
    mount_path: str = Field(max_length=1024, description="Absolute path in the containers.")
    sub_path: str | None = Field(None, max_length=1024, description="Folder of the volume to mount.")
    read_only: StrictBool = Field(False, description="Mount read-only.")
    persistent_volume_claim: Claim | None = None
    empty_dir: EmptyDir | None = None
    config_map: ConfigMap | None = None
    secret: Secret | None = None
    gcs_fuse: GcsFuse | None = None


VOLUME_SOURCES = ("persistentVolumeClaim", "emptyDir", "configMap", "secret", "gcsFuse")


class Runtime(Model):
    """What runs on the devices."""

    framework: Literal["TorchTPU", "TorchXLA"] = Field("TorchTPU", description="PyTorch's TPU backend in the image.")
    device: Literal["TPU", "CPU"] = Field("TPU", description="CPU: gloo, no chips requested; for trial runs and CI.")
    launch: Literal["Script"] = Field("Script", description="Script: the entrypoint once per device, as torchrun does.")
    image: str = Field(
        min_length=1, max_length=1024, description="Image with Ray 2.60 or later and Python 3.11 to 3.13."
    )
    entrypoint: list[Text] = Field(min_length=1, max_length=256, description="Command of every rank; no shell.")
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=256,
        description="Environment of the ranks.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    env_from: list[FreeForm] = Field(
        default_factory=list, max_length=64, description="ConfigMaps and Secrets as environment, as in a container."
    )
    files: dict[str, Annotated[str, Field(max_length=MAX_FILES_BYTES)]] = Field(
        default_factory=dict,
        max_length=64,
        description="Small text files by relative path, 32 KiB in all; their folder is the working directory.",
    )
    working_dir: str | None = Field(None, max_length=1024, description="Absolute path; default: the image's own.")
    service_account_name: str | None = Field(None, max_length=253, description="Service account of all pods.")
    volumes: list[Volume] = Field(
        default_factory=list,
        max_length=64,
        description="Volumes of head and workers.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )


class Resources(Model):
    """CPU, memory and further resources of the Ray container."""

    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=32, description="Guaranteed.")
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=32, description="Upper bounds.")


class Pod(Model):
    """What to change in a rendered pod."""

    resources: Resources | None = Field(None, description="Replaces the defaults of the Ray container, name by name.")
    template: FreeForm | None = Field(
        None,
        description="Laid over the pod template: maps merge, lists merge by name (volumeMounts by mountPath).",
    )


class Spec(Model):
    """What the job is."""

    tpu: Tpu
    runtime: Runtime
    head: Pod | None = Field(None, description="The Ray head's pod, which runs no ranks.")
    worker: Pod | None = Field(None, description="The TPU hosts' pods.")


class TorchTPUJob(Model):
    """PyTorch on TPU slices: one process per device."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, frozen=True)

    api_version: Literal["torchtpu.dev/v1alpha1"] = API_VERSION  # type: ignore[assignment]
    kind: Literal["TorchTPUJob"] = KIND  # type: ignore[assignment]
    metadata: Metadata
    spec: Spec
