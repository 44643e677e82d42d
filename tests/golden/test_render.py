"""What each kind of job becomes, to be read by people; `make goldens` writes them anew."""

import pytest

from torchtpu_operator.api.validation import check
from torchtpu_operator.manifests.rayjob import render

UID = "5b1c8a52-6f0f-4f0e-9a53-3a3f3c1d0c11"


def tpu(accelerator, topology, **more):
    return {"tpu": {"accelerator": accelerator, "topology": topology, **more}}


CASES = {
    "v4-2x2x2": tpu("v4", "2x2x2"),
    "v5e-16x16": tpu("v5e", "16x16"),
    "v5p-2x2x2": tpu("v5p", "2x2x2"),
    "v6e-1x1": tpu("v6e", "1x1"),
    "v6e-2x2": tpu("v6e", "2x2"),
    "v6e-2x4-one-host": tpu("v6e", "2x4"),
    "v6e-2x4-two-hosts": tpu("v6e", "2x4", chipsPerHost=4),
    "v6e-4x4": tpu("v6e", "4x4"),
    "v6e-4x4-three-slices": tpu("v6e", "4x4", slices=3),
    "v7x-1x1x1": tpu("v7x", "1x1x1"),
    "v7x-2x2x4": tpu("v7x", "2x2x4"),
    "cpu": {**tpu("v6e", "2x4", chipsPerHost=4), "runtime": {"device": "CPU"}},
    "cpu-keep-tpu-scheduling": {
        **tpu("v6e", "4x4"),
        "runtime": {"device": "CPU"},
        "annotations": {"torchtpu.dev/keep-tpu-scheduling": "true"},
    },
    "files": {**tpu("v6e", "2x2"), "runtime": {"files": {"train.py": "print('hi')\n", "lib/a.py": ""}}},
    "environment-and-volumes": {
        **tpu("v6e", "2x2"),
        "runtime": {
            "framework": "TorchXLA",
            "env": [
                {"name": "PYTHONPATH", "value": "/app"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
            ],
            "envFrom": [{"configMapRef": {"name": "settings"}}],
            "workingDir": "/app",
            "serviceAccountName": "trainer",
            "volumes": [
                {
                    "name": "data",
                    "mountPath": "/data",
                    "readOnly": True,
                    "gcsFuse": {"bucket": "b", "mountOptions": "x"},
                },
                {"name": "ckpt", "mountPath": "/ckpt", "persistentVolumeClaim": {"claimName": "ckpt"}, "subPath": "a"},
                {"name": "tmp", "mountPath": "/scratch", "emptyDir": {"sizeLimit": "10Gi"}},
            ],
        },
    },
    "overrides": {
        **tpu("v6e", "4x4"),
        "head": {"resources": {"limits": {"memory": "20Gi"}, "requests": {"memory": "20Gi"}}},
        "worker": {
            "template": {
                "metadata": {"labels": {"team": "ml"}},
                "spec": {
                    "terminationGracePeriodSeconds": 600,
                    "containers": [{"name": "ray-worker", "env": [{"name": "A", "value": "1"}]}, {"name": "sidecar"}],
                },
            }
        },
    },
    "long-name-with-uid": {**tpu("v6e", "4x4"), "name": "a" * 63, "uid": UID},
}


def job(case: dict):
    case = dict(case)
    metadata = {"name": case.pop("name", "train"), "namespace": "ml", "annotations": case.pop("annotations", {})}
    if "uid" in case:
        metadata["uid"] = case.pop("uid")
    runtime = {"image": "train:1", "entrypoint": ["python", "train.py", "--steps", "100"]} | case.pop("runtime", {})
    document = {
        "apiVersion": "torchtpu.dev/v1alpha1",
        "kind": "TorchTPUJob",
        "metadata": metadata,
        "spec": {"runtime": runtime, **case},
    }
    made, faults = check(document)
    assert made is not None, faults
    return made


@pytest.mark.parametrize("case", CASES, ids=list(CASES))
def test_rendered(golden, case):
    assert render(job(CASES[case])) == golden
