import pytest

from torchtpu_operator.runtime.gather import assess, order
from torchtpu_operator.tpu.slices import slice_shape

SHAPE = slice_shape("v6e", "4x4")  # 4 hosts of 4 devices


def node(slice_name, worker_id, address=None, alive=True, devices=4.0, topology="4x4"):
    return {
        "NodeID": f"{slice_name}/{worker_id}/{address}",
        "Alive": alive,
        "NodeManagerAddress": address or f"{slice_name}-{worker_id}",
        "Resources": {"CPU": 8.0} | ({"TPU": devices} if devices else {}),
        "Labels": {
            "ray.io/tpu-slice-name": slice_name,
            "ray.io/tpu-worker-id": str(worker_id),
            "ray.io/tpu-topology": topology,
        },
    }


HEAD = {"NodeID": "head", "Alive": True, "NodeManagerAddress": "head", "Resources": {}, "Labels": {}}


def whole(name):
    return [node(name, worker) for worker in (2, 0, 3, 1)]


def test_a_whole_slice_in_worker_order():
    state = assess([HEAD, *whole("tpu-a")], SHAPE, 1)
    assert state.missing == ""
    assert [[h.address for h in hosts] for hosts in state.slices] == [["tpu-a-0", "tpu-a-1", "tpu-a-2", "tpu-a-3"]]


def test_more_slices_than_wanted_are_picked_by_name():
    nodes = whole("tpu-c") + whole("tpu-a") + whole("tpu-b")
    for table in (nodes, nodes[::-1]):
        assert [hosts[0].slice_name for hosts in assess(table, SHAPE, 2).slices] == ["tpu-a", "tpu-b"]


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        ([], "0 of 1 slices of 4 hosts whole; 0 of 1 slices seen"),
        ([node("tpu-a", 0), node("tpu-a", 1)], "0 of 1 slices of 4 hosts whole; slice tpu-a: worker 2, 3 missing"),
        (
            [*whole("tpu-a"), node("tpu-a", 2, "stale")],
            "0 of 1 slices of 4 hosts whole; slice tpu-a: worker 2 seen 2 times",
        ),
        ([*whole("tpu-a")[1:], node("tpu-a", 2, alive=False)], "slice tpu-a: worker 2 missing"),
        ([*whole("tpu-a")[1:], node("tpu-a", 2, devices=8.0)], "host tpu-a-2 has 8 TPU devices in Ray, not 4"),
        ([*whole("tpu-a")[1:], node("tpu-a", 2, devices=0)], "host tpu-a-2 has 0 TPU devices in Ray, not 4"),
        ([node("tpu-a", 0, topology="2x4")], "host tpu-a-0 belongs to topology 2x4, not 4x4"),
        ([node("tpu-a", 4)], "host tpu-a-4 has worker id '4', not one of 0 to 3"),
        ([node("tpu-a", "")], "host tpu-a- has worker id '', not one of 0 to 3"),
    ],
)
def test_who_is_missing(nodes, sentence):
    state = assess([HEAD, *nodes], SHAPE, 1)
    assert sentence in state.missing
    assert state.slices == ()


def test_messages_stay_short():
    shape = slice_shape("v6e", "16x16")
    nodes = [node(f"tpu-{i:03d}", 0, topology="16x16") for i in range(200)]
    message = assess(nodes, shape, 256).missing
    assert "worker 1, 2, 3, 4, 5, 6, 7, 8 and 55 more missing" in message
    assert "196 more like these" in message
    assert "200 of 256 slices seen" in message
    assert len(message) < 600


def test_slices_are_ordered_by_replica_index_where_all_have_one():
    slices = assess(whole("tpu-a") + whole("tpu-b"), SHAPE, 2).slices
    ids = {hosts[0].slice_name: [h.node_id for h in hosts] for hosts in slices}
    indexes = dict.fromkeys(ids["tpu-a"], 1) | dict.fromkeys(ids["tpu-b"], 0)
    assert [hosts[0].slice_name for hosts in order(slices, indexes)] == ["tpu-b", "tpu-a"]
    assert order(slices, indexes)[0][0].slice_index == 0
    for unclear in ({}, dict.fromkeys(indexes, 0), {**indexes, ids["tpu-a"][0]: None}):
        assert [hosts[0].slice_name for hosts in order(slices, unclear)] == ["tpu-a", "tpu-b"]
