import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtpu_operator.contract.exits import EXIT_CODES, Cause
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.contract.progress import HostProgress, Progress
from torchtpu_operator.contract.termination import MAX_BYTES, Termination

JOB = JobSpec(
    name="ddp",
    namespace="ml",
    uid="u-1",
    attempt=2,
    framework="TorchTPU",
    device="TPU",
    accelerator="v6e",
    topology="4x4",
    chips_per_host=4,
    slices=1,
    entrypoint=("python", "train.py"),
)


def test_job_survives_the_pod_wall():
    assert JobSpec.from_json(JOB.to_json()) == JOB


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"entrypoint": 1}', '{"entrypoint": [], "colour": 1}'])
def test_what_is_not_a_job_record_is_refused_with_its_name(text):
    with pytest.raises(ValueError, match="not a job record"):
        JobSpec.from_json(text)


def test_progress_survives():
    progress = Progress("Running", hosts=(HostProgress(0, 1, "10.0.0.1", (4, 5), ("running", "done")),), hosts_wanted=2)
    assert Progress.from_json(progress.to_json()) == progress
    with pytest.raises(ValueError, match="not a progress record"):
        Progress.from_json("{}")


@given(st.text(max_size=5000))
def test_a_termination_message_fits_kubernetes_whatever_it_says(message):
    text = Termination(Cause.RANK_FAILED, message, rank=3, exit_code=-9, error_type="ValueError").to_json()
    assert len(text.encode()) <= MAX_BYTES
    read = Termination.from_json(text)
    assert (read.cause, read.rank, read.exit_code) == (Cause.RANK_FAILED, 3, -9)
    assert message.startswith(read.message)


@given(st.text(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_a_hostile_termination_message_raises_value_error_only(text):
    with pytest.raises(ValueError, match=r"termination message|Cause"):
        Termination.from_json(text)


def test_every_cause_has_its_own_exit_code():
    assert set(EXIT_CODES) == set(Cause)
    assert len(set(EXIT_CODES.values())) == len(Cause)
    assert [cause for cause, code in EXIT_CODES.items() if code == 0] == [Cause.SUCCEEDED]
