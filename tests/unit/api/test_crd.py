import subprocess
import sys
from pathlib import Path

import jsonschema_rs

from torchtpu_operator.api.crd import crd, text

ROOT = Path(__file__).parents[3]
FORBIDDEN = {"$ref", "title", "anyOf", "oneOf", "$defs", "const"}


def schema() -> dict:
    return crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def walk(node):
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from walk(child)
    elif isinstance(node, list):
        for child in node:
            yield from walk(child)


def test_it_is_structural():
    for node in walk(schema()):
        assert not FORBIDDEN & {key for key in node if key != "title" or isinstance(node[key], str)}, node
        assert not ("properties" in node and "additionalProperties" in node), node


def test_the_committed_file_is_current_and_small_enough_for_kubectl_apply():
    path = ROOT / "crds" / "torchtpujobs.yaml"
    assert path.read_text() == text()
    assert path.stat().st_size < 256 * 1024


def test_the_schema_takes_the_example_and_refuses_a_wrong_enum():
    validator = jsonschema_rs.validator_for(schema())
    spec = {
        "tpu": {"accelerator": "v6e", "topology": "4x4"},
        "runtime": {
            "image": "x",
            "entrypoint": ["python"],
            "volumes": [{"name": "v", "mountPath": "/v", "emptyDir": {}}],
        },
        "worker": {"resources": {"limits": {"cpu": 4, "memory": "1Gi"}}, "template": {"spec": {"anything": [1]}}},
    }
    assert validator.is_valid({"spec": spec})
    assert not validator.is_valid({"spec": {**spec, "tpu": {"accelerator": "v3", "topology": "4x4"}}})
    assert not validator.is_valid({"spec": {**spec, "tpu": {"accelerator": "v6e", "topology": "4x4", "slices": 257}}})
    assert not validator.is_valid({"spec": {"tpu": spec["tpu"]}})


def test_drift_is_shown(tmp_path):
    (tmp_path / "torchtpujobs.yaml").write_text(text().replace("torchtpujobs", "jobs", 1))
    command = [sys.executable, "-m", "torchtpu_operator.api.crd", "--check", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "make crds" in done.stdout
