"""Rendered objects become processes; the objects come from the real renderer."""

import json
from pathlib import Path
from random import Random

import pytest

from torchtpu_operator.api.validation import check
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.local import pods
from torchtpu_operator.local.objects import UnsupportedObject
from torchtpu_operator.local.pods import Site
from torchtpu_operator.manifests.rayjob import render

SITE = Site(
    output=Path("/out"),
    scratch=Path("/tmp/ttj-abcdefgh"),
    volumes=Path("/kept"),
    workdir=Path("/home/me/job"),
    python="/usr/bin/python3.11",
    network="127.70.7",
    gcs_port=20001,
    dashboard_port=20002,
    client_port=20003,
    agent_port=20004,
    token="0123456789abcdef0123456789abcdef",
    shell={
        "PATH": "/usr/bin",
        "RAY_ADDRESS": "x",
        "TPU_NAME": "mine",
        "PYTHONPATH": "/p",
        "HF_TOKEN": "t",
        "LANG": "C",
    },
)


def plan(tpu, **runtime):
    value = {
        "apiVersion": "torchtpu.dev/v1alpha1",
        "kind": "TorchTPUJob",
        "metadata": {"name": "train"},
        "spec": {"tpu": tpu, "runtime": {"image": "i:1", "device": "CPU", "entrypoint": ["python", "t.py"]} | runtime},
    }
    job, faults = check(value)
    assert job, faults
    return pods.plan(render(job)[0], SITE, Random(1))


def test_hosts_of_two_slices():
    two = plan({"accelerator": "v6e", "topology": "2x4", "chipsPerHost": 4, "slices": 2})
    places = [(p.name, p.address, p.main.env["TPU_WORKER_ID"], p.main.env["TTJ_SLICE_INDEX"]) for p in two.workers]
    assert places == [
        ("slice-0-host-0", "127.70.7.2", "0", "0"),
        ("slice-0-host-1", "127.70.7.3", "1", "0"),
        ("slice-1-host-0", "127.70.7.4", "0", "1"),
        ("slice-1-host-1", "127.70.7.5", "1", "1"),
    ]
    slices = [pod.main.env["TPU_NAME"] for pod in two.workers]
    assert slices[0] == slices[1] != slices[2] == slices[3]
    assert slices[0].startswith("tpu-")
    assert two.workers[0].main.env["TPU_TOPOLOGY"] == "2x4"
    assert two.head.main.env["TTJ_JOB"]


def test_one_host_gets_its_name_from_the_pod():
    (worker,) = plan({"accelerator": "v7x", "topology": "2x2x1"}).workers
    assert worker.main.env["TPU_WORKER_ID"] == "0"
    assert worker.main.env["TPU_NAME"].startswith("train-1-")
    assert '--resources={"TPU": 8}' in worker.main.argv
    assert "--num-cpus=9" in worker.main.argv


def test_ray_start_binds_here():
    made = plan({"accelerator": "v6e", "topology": "1x1"})
    head, worker = made.head.main.argv, made.workers[0].main.argv
    assert head[:2] == ("/tmp/ttj-abcdefgh/bin/ray", "start")
    assert {"--head", "--block", "--num-cpus=0", "--port=20001", "--node-ip-address=127.70.7.1"} <= set(head)
    assert {"--address=127.70.7.1:20001", "--block", "--node-ip-address=127.70.7.2"} <= set(worker)
    assert not any("metrics-export-port" in word or word.startswith("--memory") for word in head + worker)
    folder = pods.ray_folder(SITE.scratch, "127.70.7.254")
    longest = f"{folder}/session_2026-12-01_09-17-51_474191_4194304/sockets/plasma_store"
    assert len(longest) <= 107


def test_the_token_is_in_every_environment_and_on_no_command_line():
    made = plan({"accelerator": "v6e", "topology": "1x1"})
    for pod in (made.head, *made.workers, made.submitter):
        assert (pod.main.env["RAY_AUTH_MODE"], pod.main.env["RAY_AUTH_TOKEN"]) == ("token", SITE.token)
        assert not any(SITE.token in word for command in (*pod.init, pod.main) for word in command.argv)


def test_what_of_this_shell_reaches_the_job():
    env = plan({"accelerator": "v6e", "topology": "1x1"}).workers[0].main.env
    assert env["LANG"] == "C"
    assert env["PATH"] == "/tmp/ttj-abcdefgh/bin:/usr/bin"
    assert env["RAY_ADDRESS"] == "127.70.7.1:20001"
    assert env["TPU_NAME"] != "mine"
    assert env["PYTHONPATH"] == "/tmp/ttj-abcdefgh/pods/slice-0-host-0/torchtpu-runtime"


def test_volumes_are_folders_and_said():
    made = plan(
        {"accelerator": "v6e", "topology": "1x1"},
        entrypoint=["python", "t.py", "--data=/data/x", "/ckpt"],
        env=[
            {"name": "CACHE", "value": "/data/cache"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}},
        ],
        volumes=[
            {"name": "d", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "set"}},
            {"name": "c", "mountPath": "/ckpt", "subPath": "a", "gcsFuse": {"bucket": "b"}},
        ],
        workingDir="/app",
    )
    job = JobSpec.from_json(made.head.main.env["TTJ_JOB"])
    assert job.entrypoint == ("python", "t.py", "--data=/kept/claim-set/x", "/kept/bucket-b/a")
    assert job.working_dir is None
    assert job.stop_grace_s == pods.STOP_GRACE_S
    env = made.workers[0].main.env
    assert (env["CACHE"], env["HF_TOKEN"]) == ("/kept/claim-set/cache", "t")
    assert Path("/kept/claim-set") in made.workers[0].folders
    said = dict(made.substitutions)
    assert said["claim set at /data"] == "/kept/claim-set"
    assert said["workingDir /app"] == "/home/me/job"
    assert "HF_TOKEN from secretKeyRef hf/t" in said
    assert "image i:1" in said


def test_files_are_written_by_the_init_container_and_not_rewritten():
    text = "open('/opt/torchtpu/x')"
    made = plan({"accelerator": "v6e", "topology": "1x1"}, files={"t.py": text})
    (init,) = made.head.init
    assert json.loads(init.env["TTJ_FILES"]) == {"t.py": text}
    assert init.argv[-2] == "--target"
    assert JobSpec.from_json(made.head.main.env["TTJ_JOB"]).working_dir == f"{init.argv[-1]}/files"


def test_the_submitter_as_kuberay_starts_it():
    made = plan({"accelerator": "v6e", "topology": "1x1"})
    env = made.submitter.main.env
    assert made.submitter.main.argv[-1] == "submit"
    assert env["RAY_DASHBOARD_ADDRESS"] == "127.70.7.1:20002"
    assert env["RAY_JOB_SUBMISSION_ID"].startswith("train-1-")
    assert env["TTJ_TERMINATION_LOG"] == "/out/termination.json"


def test_an_object_of_somebody_else_is_refused():
    with pytest.raises(UnsupportedObject, match="TTJ_JOB"):
        pods.job_record({"spec": {"rayClusterSpec": {"headGroupSpec": {"template": {"spec": {"containers": [{}]}}}}}})
