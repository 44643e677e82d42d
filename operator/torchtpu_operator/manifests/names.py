"""Names of children, within what KubeRay and Google's TPU webhook can hold."""

import hashlib

# Google's webhook shortens `<cluster>-headless` past 50: a RayCluster has at most 41, of which KubeRay adds 6.
MAX_RAYJOB_NAME = 35
_HASH = 8


def child_name(job_name: str, attempt: int) -> str:
    """The RayJob of an attempt: `<job>-<attempt>`, cut and hashed where that is over 35 characters."""
    suffix = f"-{attempt}"
    if len(job_name) + len(suffix) <= MAX_RAYJOB_NAME:
        return job_name + suffix
    digest = hashlib.sha256(job_name.encode()).hexdigest()[:_HASH]
    kept = job_name[: MAX_RAYJOB_NAME - len(suffix) - _HASH - 1].rstrip("-")
    return f"{kept}-{digest}{suffix}"
