"""What must hold for every slice shape there is, and for any name."""

import copy
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtpu_operator.api.model import Metadata, Runtime, Spec, TorchTPUJob, Tpu
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.manifests.names import child_name
from torchtpu_operator.manifests.overlay import overlay
from torchtpu_operator.manifests.rayjob import render
from torchtpu_operator.tpu.generations import GENERATIONS
from torchtpu_operator.tpu.slices import slice_shape, topologies

SHAPES = [(g.name, t) for g in GENERATIONS.values() for t in topologies(g)]


def job(accelerator="v6e", topology="4x4", **tpu) -> TorchTPUJob:
    return TorchTPUJob(
        metadata=Metadata(name="train"),
        spec=Spec(
            tpu=Tpu(accelerator=accelerator, topology=topology, **tpu), runtime=Runtime(image="i", entrypoint=["p"])
        ),
    )


def worker(rendered: dict) -> tuple[dict, dict]:
    group = rendered["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    return group, group["template"]["spec"]


@given(st.sampled_from(SHAPES))
def test_every_shape_becomes_whole_slices_of_whole_hosts(pair):
    shape = slice_shape(*pair)
    (made,) = render(job(*pair))
    group, pod = worker(made)
    resources = pod["containers"][0]["resources"]
    chips = int(resources["limits"]["google.com/tpu"])
    assert resources["limits"] == resources["requests"]
    assert chips * group["numOfHosts"] == shape.chips
    assert group["resources"] == {"TPU": str(shape.devices // shape.hosts)}
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 1
    assert int(resources["limits"]["cpu"]) <= 0.8 * shape.machine_type.vcpus
    assert int(resources["limits"]["memory"][:-2]) * 1024**3 <= 0.8 * shape.machine_type.memory_gb * 1e9
    assert ("podAffinity" in pod["affinity"]) == shape.multi_host
    identity = {v["name"]: v for v in pod["containers"][0]["env"]}
    assert ("valueFrom" in identity["TPU_WORKER_ID"]) == shape.multi_host
    assert identity["TPU_ACCELERATOR_TYPE"]["value"] == shape.accelerator_type
    head = made["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    spec = JobSpec.from_json(next(v["value"] for v in head["env"] if v["name"] == "TTJ_JOB"))
    assert (spec.topology, spec.chips_per_host) == (shape.topology, shape.chips_per_host)


def walk(node):
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from walk(child)
    elif isinstance(node, list):
        for child in node:
            yield from walk(child)


def test_the_operator_alone_retries_and_never_suspends():
    (made,) = render(job())
    spec = made["spec"]
    assert (spec["backoffLimit"], spec["submitterConfig"]["backoffLimit"]) == (0, 0)
    assert "suspend" not in spec
    templates = [spec["submitterPodTemplate"], spec["rayClusterSpec"]["headGroupSpec"]["template"]]
    templates.append(spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"])
    for template in templates:
        assert template["spec"]["restartPolicy"] == "Never"
        assert template["metadata"]["labels"] == {"torchtpu.dev/job-name": "train", "torchtpu.dev/attempt": "1"}
        assert "app.kubernetes.io/name" not in template["metadata"]["labels"]
    names = [v["name"] for node in walk(made) for v in node.get("env", [])]
    assert "RAY_EXPERIMENTAL_NOSET_TPU_VISIBLE_CHIPS" not in names
    assert "RAY_AUTH_MODE" not in names


def test_rendering_is_deterministic_and_leaves_its_input_alone():
    one = job(slices=2)
    before = one.model_dump()
    first = render(one)
    second = render(one)
    assert first == second
    first[0]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"].clear()
    assert render(one) == second
    assert one.model_dump() == before


def kubelet(value: str) -> str:
    """Kubernetes' expansion of a container's env value, with no variable defined before it."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda found: "$" if found[1] == "$" else found[0], value)


@given(st.text(alphabet='$(){}aA \n"\\', min_size=1, max_size=20))
def test_dollars_of_the_user_reach_the_pod_as_they_were_written(word):
    one = TorchTPUJob(
        metadata=Metadata(name="train"),
        spec=Spec(
            tpu=Tpu(accelerator="v6e", topology="2x2"),
            runtime=Runtime(image="i", entrypoint=["p", word], files={"a.sh": word}),
        ),
    )
    head = render(one)[0]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    env = {v["name"]: v.get("value", "") for c in head["containers"] + head["initContainers"] for v in c.get("env", [])}
    assert JobSpec.from_json(kubelet(env["TTJ_JOB"])).entrypoint == ("p", word)
    assert json.loads(kubelet(env["TTJ_FILES"])) == {"a.sh": word}


@given(st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True), st.integers(1, 99_999))
def test_any_legal_name_gives_a_legal_child_name(name, attempt):
    child = child_name(name, attempt)
    assert len(child) <= 35
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", child)
    assert child.endswith(f"-{attempt}")


def test_long_names_stay_apart():
    assert child_name("a" * 60 + "x", 1) != child_name("a" * 60 + "y", 1)
    assert child_name("train", 12) == "train-12"


trees = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.lists(
            st.fixed_dictionaries({"name": st.sampled_from("xyz"), "v": inner}),
            max_size=3,
            unique_by=lambda i: i["name"],
        )
    ),
    max_leaves=8,
)


@given(trees, trees)
def test_an_overlay_is_idempotent_and_changes_neither_argument(base, change):
    base_before, change_before = copy.deepcopy(base), copy.deepcopy(change)
    once = overlay(base, change)
    assert overlay(once, change) == once
    assert (base, change) == (base_before, change_before)
    assert overlay(base, {} if isinstance(base, dict) else base) == base


@pytest.mark.parametrize(
    ("base", "change", "merged"),
    [
        (
            [{"name": "a", "v": 1}],
            [{"name": "b"}, {"name": "a", "w": 2}],
            [{"name": "a", "v": 1, "w": 2}, {"name": "b"}],
        ),
        ([1, 2], [3], [3]),
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/b"}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]},
        ),
    ],
)
def test_overlays_by_hand(base, change, merged):
    assert overlay(base, change) == merged


@pytest.mark.parametrize("topology", ["2x2", "4x4"])
def test_a_key_of_an_affinity_term_stands_in_one_place(topology):
    """The API server refuses pods otherwise; no schema says so."""
    (made,) = render(job(topology=topology))
    terms = [node for node in walk(made) if "topologyKey" in node]
    assert terms
    for term in terms:
        selector = term["labelSelector"]
        chosen = {e["key"] for e in selector.get("matchExpressions", [])} | set(selector.get("matchLabels", {}))
        assert not chosen & {*term.get("matchLabelKeys", []), *term.get("mismatchLabelKeys", [])}
