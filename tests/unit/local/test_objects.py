from pathlib import Path

import pytest

from torchtpu_operator.local.objects import (
    Mounts,
    PodFacts,
    UnsupportedObject,
    command_line,
    environment,
    expand,
    quantity,
    ray_start,
)

FACTS = PodFacts(
    {"name": "pod-1", "namespace": "ml", "uid": "u", "labels": {"a/b": "3"}, "annotations": {}},
    "127.9.9.2",
    {"limits": {"cpu": "2500m", "memory": "2Gi"}},
)


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 0.5), ("2", 2), (3, 3), ("1Gi", 2**30), ("1k", 1000), ("1e3", 1000), ("0.5", 0.5)]
)
def test_quantities(text, value):
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1GB", "x1"])
def test_what_is_no_quantity(text):
    with pytest.raises(UnsupportedObject):
        quantity(text)


def test_references_expand_as_in_kubernetes():
    assert expand("$(A)/$(B) $$(A) $A", {"A": "1"}) == "1/$(B) $(A) $A"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/v/data"),
        ("/data/x", "/v/data/x"),
        ("--in=/data/x,/data/y", "--in=/v/data/x,/v/data/y"),
        ("/data/sub/x", "/s/x"),
        ("/database", "/database"),
        ("/my/data", "/my/data"),
        ("gs://data/x", "gs://data/x"),
        ("x/data", "x/data"),
        ("/data-2", "/data-2"),
        ('{"p":"/data/x"}', '{"p":"/v/data/x"}'),
    ],
)
def test_only_paths_below_a_mount_are_replaced(text, expected):
    assert Mounts({"/data": Path("/v/data"), "/data/sub": Path("/s")}).text(text) == expected


def test_the_downward_api():
    entries = [
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "MIB", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "BOTH", "value": "$(NAME)-$(LABEL)"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "GONE", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
    ]
    asked = []

    def unknown(name, source):
        asked.append(source)
        return "secret" if name == "KEY" else None

    assert environment(entries, FACTS, Mounts({}), unknown) == {
        "LABEL": "3",
        "IP": "127.9.9.2",
        "NAME": "pod-1",
        "CPU": "3",
        "MIB": "2048",
        "BOTH": "pod-1-3",
        "KEY": "secret",
    }
    assert asked == ["secretKeyRef s/k", "configMapKeyRef c/k"]


def test_an_unknown_field_is_refused():
    with pytest.raises(UnsupportedObject, match=r"spec\.other"):
        FACTS.field("spec.other")


def test_ray_start_as_kuberay_makes_it():
    container = {"resources": {"limits": {"cpu": "3500m", "memory": "2Gi", "google.com/tpu": "4"}}}
    flags = ray_start({"rayStartParams": {"num-cpus": "0"}}, container, head=True)
    assert flags == {"num-cpus": "0", "resources": '{"TPU": 4}', "head": "true", "block": "true"}
    group = {"resources": {"TPU": "8", "CPU": "9", "memory": "1Gi", "x": "1"}, "labels": {"k": "v"}}
    flags = ray_start(group, container, head=False)
    assert flags == {"num-cpus": "9", "resources": '{"TPU": 8, "x": 1}', "labels": "k=v", "block": "true"}
    assert command_line({"block": "true", "head": "false", "include-dashboard": "false", "port": "1"}) == [
        "--block",
        "--include-dashboard=false",
        "--port=1",
    ]
