"""One control plane for all tests; each test has a namespace of its own."""

import itertools

import pytest
from tests.testbed.controlplane import Options, control_plane

COUNTER = itertools.count(1)


@pytest.fixture(scope="session")
def plane():
    with control_plane(Options(kueue=True)) as running:
        yield running


@pytest.fixture
def namespace(plane):
    name = f"test-{next(COUNTER)}"
    plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}])
    plane.processes.wait(lambda: plane.get("serviceaccounts", "-n", name), "the namespace's service account")
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def nodes(plane):
    """Adds nodes; they are gone after the test."""
    added = []

    def add(objects):
        objects = list(objects)
        added.extend(node["metadata"]["name"] for node in objects)
        plane.apply(objects)
        plane.kubectl("wait", "--for=condition=Ready", "--timeout=30s", *(f"node/{name}" for name in added))

    yield add
    if added:
        plane.kubectl("delete", "--wait=false", "node", *added)
