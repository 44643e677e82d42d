"""Jobs as the tests of the cluster write them, rendered as the CLI renders them."""

from pathlib import Path

import yaml

from torchtpu_operator.api.model import TorchTPUJob
from torchtpu_operator.manifests.rayjob import render

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name, namespace, **tpu):
    """The RayJob of an example, in a namespace, with parts of its `tpu` changed."""
    job = yaml.safe_load((EXAMPLES / name / "job.yaml").read_text())
    job["metadata"]["namespace"] = namespace
    job["spec"]["tpu"] |= tpu
    (rayjob,) = render(TorchTPUJob.model_validate(job))
    return rayjob


def workers(plane, namespace):
    """Worker pods that have a node."""
    pods = plane.get("pods", "-n", namespace, "-l", "ray.io/node-type=worker")
    return [pod for pod in pods if pod["spec"].get("nodeName")]
