"""The job as the runtime needs it: rendered into the head pod's environment, read by the driver."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

Framework = Literal["TorchTPU", "TorchXLA"]
Device = Literal["TPU", "CPU"]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One attempt of a job.

    `uid` is the TorchTPUJob's, or its name where there is none yet (rendered offline). Times are seconds.
    `working_dir` None means the container's own working directory.
    """

    name: str
    namespace: str
    uid: str
    attempt: int
    framework: Framework
    device: Device
    accelerator: str
    topology: str
    chips_per_host: int
    slices: int
    entrypoint: tuple[str, ...]
    working_dir: str | None = None
    startup_deadline_s: float = 600.0
    stop_grace_s: float = 30.0
    exit_deadline_s: float = 300.0

    def to_json(self) -> str:
        """One line of JSON with sorted keys, so that rendering is deterministic."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "JobSpec":
        """Read what `to_json` wrote. Raises ValueError on anything else."""
        try:
            data = json.loads(text)
            return cls(**{**data, "entrypoint": tuple(data["entrypoint"])})
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"not a job record: {error}") from error
