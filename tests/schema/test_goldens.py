"""The goldens against KubeRay's own schema, with unknown fields refused, as `kubectl` asks the API server to."""

import copy
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CRD = ROOT / ".cache" / "kuberay-v1.6.0" / "ray.io_rayjobs.yaml"
GOLDENS = sorted((ROOT / "tests" / "golden").rglob("*.yaml"))


def strict(schema: dict) -> dict:
    """An openAPIV3Schema as JSON schema in which a field that is not listed is an error."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    result = dict(schema)
    if "properties" in schema:
        result["properties"] = {key: strict(part) for key, part in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            result["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            result[key] = strict(schema[key])
    return {key: value for key, value in result.items() if key != "format"}


@pytest.fixture(scope="module")
def rayjob():
    assert CRD.exists(), "run `make test-schema`, which fetches KubeRay's schema"
    versions = yaml.load(CRD.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    schema = strict(next(v for v in versions if v["name"] == "v1")["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema_rs.validator_for(schema)


def documents(path: Path) -> list[dict]:
    return list(yaml.load_all(path.read_text(), yaml.CSafeLoader))


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_golden(rayjob, path):
    for document in documents(path):
        assert [f"{list(e.instance_path)}: {e.message}" for e in rayjob.iter_errors(document)] == []


def test_there_are_goldens_and_a_misspelt_field_is_seen(rayjob):
    assert len(GOLDENS) > 10
    (good,) = documents(GOLDENS[0])
    for path in (["spec"], ["spec", "rayClusterSpec", "workerGroupSpecs", 0, "template", "spec"]):
        bad = copy.deepcopy(good)
        holder = bad
        for part in path:
            holder = holder[part]
        holder["restartPolice"] = "Never"
        assert not rayjob.is_valid(bad)
