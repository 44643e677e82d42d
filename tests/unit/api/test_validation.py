import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtpu_operator.api.validation import check, is_torchtpu

GOOD = {
    "apiVersion": "torchtpu.dev/v1alpha1",
    "kind": "TorchTPUJob",
    "metadata": {"name": "fsdp", "creationTimestamp": None},
    "spec": {
        "tpu": {"accelerator": "v6e", "topology": "4x4"},
        "runtime": {"image": "train:1", "entrypoint": ["python", "train.py"]},
    },
    "status": {"anything": 1},
}


def changed(path: str, value) -> dict:
    document = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    holder = document
    for part in parents:
        holder = holder.setdefault(part, {})
    holder[last] = value
    return document


def faults(document) -> list[str]:
    job, found = check(document)
    assert (job is None) == any(fault.severity == "error" for fault in found)
    return [str(fault) for fault in found]


def test_a_good_document_has_no_faults_and_its_defaults():
    job, found = check(GOOD)
    assert found == []
    assert job is not None
    assert (job.spec.tpu.slices, job.spec.runtime.framework, job.metadata.namespace) == (1, "TorchTPU", "default")


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("apiVersion", "torchtpu.dev/v1", "apiVersion: must be torchtpu.dev/v1alpha1; got 'torchtpu.dev/v1'"),
        ("kind", "TorchTpuJob", "kind: must be TorchTPUJob; got 'TorchTpuJob'"),
        ("metadata.name", "9to5", "must be 1 to 63 of a-z"),
        ("metadata.name", "a" * 64, f"for example {'a' * 63}"),
        ("metadata.name", "a" * 253, "must be 1 to 63"),
        ("metadata.name", "", "must be 1 to 63"),
        ("metadata.name", "jöb", "for example j-b"),
        ("metadata.annotations", {"torchtpu.dev/keep-tpu-scheduling": "yes"}, 'must be "true" or "false"'),
        ("spec.tpu.topology", "4x6", "spec.tpu.topology: v6e has no topology 4x6; nearest: 4x4 (16 chips), 4x8 (32"),
        ("spec.tpu.topology", "4x2", "2x4"),
        ("spec.tpu.accelerator", "trillium", "spec.tpu.accelerator: "),
        ("spec.tpu.accelerator", "v3", "v3"),
        ("spec.tpu.chipsPerHost", 8, "spec.tpu.chipsPerHost: v6e 4x4 has no hosts of 8 chips"),
        ("spec.tpu.slices", 0, "spec.tpu.slices: must be 1 to 256, got 0"),
        ("spec.tpu.slices", 10_000, "spec.tpu.slices: must be 1 to 256, got 10000"),
        ("spec.tpu.slices", "two", "spec.tpu.slices: must be an integer, got 'two'"),
        ("spec.tpu.slices", True, "spec.tpu.slices: must be an integer"),
        ("spec.tpu.topologie", "4x4", "no such field; did you mean topology?"),
        ("spec.runtime.device", "cpu", "spec.runtime.device: must be one of TPU, CPU, got 'cpu'"),
        ("spec.runtime.entrypoint", [], "spec.runtime.entrypoint"),
        (
            "spec.runtime.entrypoint",
            "python train.py",
            "spec.runtime.entrypoint: must be a list, got 'python train.py'",
        ),
        ("spec.runtime.entrypoint", ["python", "\0"], "NUL"),
        ("spec.runtime.entrypoint", ["x" * 4096] * 9, "bytes; at most 32,768"),
        (
            "spec.runtime.env",
            [{"name": "RANK", "value": "0"}],
            "spec.runtime.env[0].name: RANK tells a process which rank",
        ),
        (
            "spec.runtime.env",
            [{"name": "TPU_WORKER_ID", "value": "0"}],
            "spec.runtime.env[0].name: TPU_WORKER_ID tells",
        ),
        ("spec.runtime.env", [{"name": "TTJ_JOB", "value": "0"}], "are the runtime's"),
        ("spec.runtime.env", [{"name": "A"}, {"name": "A"}], "'A' stands 2 times"),
        ("spec.runtime.env", [{"name": "A", "value": 1}], "spec.runtime.env[0].value: must be text, got 1"),
        ("spec.runtime.env", [{"name": "A", "value": "", "valueFrom": {}}], "give one"),
        ("spec.runtime.files", {"../x": ""}, "relative path"),
        ("spec.runtime.files", {"a": "x" * 20_000, "b": "x" * 20_000}, "40,000 bytes in all; at most 32,768"),
        ("spec.runtime.files", {"a": "", "a/b": ""}, "a folder of another file"),
        ("spec.runtime.workingDir", "code", "must be an absolute path"),
        ("spec.runtime.volumes", [{"name": "v", "mountPath": "/v"}], "has no source; give exactly one of"),
        ("spec.runtime.volumes", [{"name": "v", "mountPath": "/dev/shm/x", "emptyDir": {}}], "operator's own"),
        ("spec.worker", {"template": {"spec": {"restartPolicy": "Always"}}}, "spec.worker.template.spec.restartPolicy"),
        ("spec.worker", {"template": {"metadata": {"labels": {"ray.io/cluster": "x"}}}}, "KubeRay's"),
        ("spec.worker", {"resources": {"limits": {"google.com/tpu": 4}}}, "google.com/tpu follows from spec.tpu"),
        (
            "spec.worker",
            {"template": {"spec": {"containers": [{"name": "ray-worker", "env": [{"name": "RANK"}]}]}}},
            "spec.worker.template.spec.containers[0].env[0].name: RANK",
        ),
        ("spec.wroker", {}, "spec.wroker: no such field; did you mean worker? allowed: tpu, runtime, head, worker"),
        ("spec.runtime.\x1b[31m", 1, "no such field"),
    ],
)
def test_each_fault_names_its_place_and_what_is_allowed(path, value, fault):
    found = faults(changed(path, value))
    assert any(fault in text for text in found), found
    assert all(text.isprintable() for text in found)


def test_torch_xla_on_cpu_is_refused_for_several_ranks_only():
    document = changed("spec.runtime.framework", "TorchXLA")
    document["spec"]["runtime"]["device"] = "CPU"
    assert "silently" in faults(document)[0]
    document["spec"]["tpu"]["topology"] = "1x1"
    assert faults(document) == []


def test_all_faults_come_at_once_whatever_their_kind():
    document = changed("spec.tpu.topology", "4x6")
    document["metadata"]["name"] = "X"
    document["spec"]["runtime"]["env"] = [{"name": "RANK", "value": "1"}]
    document["spec"]["runtime"]["colour"] = "red"
    del document["spec"]["runtime"]["image"]
    paths = {text.split(":")[0] for text in faults(document)}
    assert {"spec.runtime.colour", "spec.runtime.image"} <= paths
    document["spec"]["runtime"]["image"] = "x"
    paths = {text.split(":")[0] for text in faults(document)}
    assert paths == {"spec.runtime.colour", "spec.tpu.topology", "metadata.name", "spec.runtime.env[0].name"}


def test_shapes_of_one_host_have_one_slice():
    document = changed("spec.tpu", {"accelerator": "v6e", "topology": "2x4", "slices": 2})
    assert "single host of 8 chips" in faults(document)[0]


def test_warnings_do_not_refuse():
    document = changed("spec.tpu", {"accelerator": "v5p", "topology": "16x20x28"})
    job, found = check(document)
    assert job is not None
    assert {fault.severity for fault in found} == {"warning"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_any_value_is_judged_without_an_exception(value):
    assert check(value)[0] is None
    is_torchtpu(value)


@given(
    st.sampled_from(
        "metadata metadata.name metadata.labels spec spec.tpu spec.tpu.topology spec.tpu.slices spec.runtime "
        "spec.runtime.env spec.runtime.files spec.runtime.volumes spec.runtime.entrypoint spec.head spec.worker "
        "spec.worker.template spec.worker.template.spec spec.worker.template.spec.containers".split()
    ),
    values,
)
def test_any_value_anywhere_is_judged_without_an_exception(path, value):
    for fault in check(changed(path, value))[1]:
        assert str(fault).isprintable()
        assert len(str(fault)) < 600


@pytest.mark.parametrize(
    ("document", "ours"),
    [
        ({"apiVersion": "v1", "kind": "ConfigMap"}, False),
        ({"apiVersion": "torchtpu.dev/v9", "kind": "X"}, True),
        ({"apiVersion": "v1", "kind": "TorchTPUJob"}, True),
    ],
)
def test_other_kinds_beside_the_job_are_none_of_ours(document, ours):
    assert is_torchtpu(document) == ours
