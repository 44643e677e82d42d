"""Which slices are whole, decided from Ray's node table. Pure; imports no Ray.

A host is a living node with the slice's topology, its devices, a slice name and a worker id; a slice is whole when it
has worker ids 0…n-1, each exactly once.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchtpu_operator.contract.names import RAY_LABEL_SLICE_NAME, RAY_LABEL_TOPOLOGY, RAY_LABEL_WORKER_ID
from torchtpu_operator.tpu.slices import SliceShape

NAMED_SLICES = 4  # incomplete slices that a message names
NAMED_WORKERS = 8  # worker ids that a message names for one slice


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a slice. `slice_index` is KubeRay's replica index, known once its agent has answered."""

    node_id: str
    address: str
    slice_name: str
    worker_id: int
    slice_index: int | None = None


@dataclass(frozen=True, slots=True)
class Gathering:
    """`slices`: whole ones to use, by name, hosts by worker id. `missing`: a sentence, empty when enough are whole."""

    slices: tuple[tuple[Host, ...], ...]
    seen: tuple[Host, ...]
    missing: str


def assess(nodes: Iterable[Mapping[str, Any]], shape: SliceShape, slices: int) -> Gathering:
    """Decide from `ray.nodes()`. Raises nothing: a node that makes no sense is named in `missing`."""
    by_slice: dict[str, dict[int, list[Host]]] = defaultdict(lambda: defaultdict(list))
    odd: list[str] = []
    for node in nodes:
        if not node["Alive"] or not node["Labels"].get(RAY_LABEL_SLICE_NAME):
            continue
        host = _host(node, shape)
        if isinstance(host, str):
            odd.append(host)
        else:
            by_slice[host.slice_name][host.worker_id].append(host)
    whole, partial = [], []
    for name in sorted(by_slice):
        workers = by_slice[name]
        if sorted(workers) == list(range(shape.hosts)) and all(len(hosts) == 1 for hosts in workers.values()):
            whole.append(tuple(workers[i][0] for i in range(shape.hosts)))
        else:
            partial.append(f"slice {name}: {_lacks(workers, shape.hosts)}")
    seen = tuple(h for name in sorted(by_slice) for w in sorted(by_slice[name]) for h in by_slice[name][w])
    if len(whole) >= slices:
        return Gathering(tuple(whole[:slices]), seen, "")
    return Gathering(tuple(whole), seen, _missing(whole, partial, odd, slices, shape))


def _host(node: Mapping[str, Any], shape: SliceShape) -> Host | str:
    """The host that a node is, or what is wrong with it."""
    labels, address = node["Labels"], node["NodeManagerAddress"]
    devices, topology = node["Resources"].get("TPU", 0), labels.get(RAY_LABEL_TOPOLOGY)
    worker_id = labels.get(RAY_LABEL_WORKER_ID, "")
    if topology != shape.topology:
        return f"host {address} belongs to topology {topology}, not {shape.topology}"
    if devices != shape.devices_per_host:
        return f"host {address} has {devices:g} TPU devices in Ray, not {shape.devices_per_host}"
    if not (worker_id.isascii() and worker_id.isdigit()) or int(worker_id) >= shape.hosts:
        return f"host {address} has worker id {worker_id!r}, not one of 0 to {shape.hosts - 1}"
    return Host(node["NodeID"], address, labels[RAY_LABEL_SLICE_NAME], int(worker_id))


def _lacks(workers: Mapping[int, list[Host]], hosts: int) -> str:
    parts = []
    absent = [str(i) for i in range(hosts) if i not in workers]
    if absent:
        more = f" and {len(absent) - NAMED_WORKERS} more" if len(absent) > NAMED_WORKERS else ""
        parts.append(f"worker {', '.join(absent[:NAMED_WORKERS])}{more} missing")
    parts += [f"worker {i} seen {len(hosts)} times" for i, hosts in sorted(workers.items()) if len(hosts) > 1]
    return ", ".join(parts)


def _missing(whole: list[Any], partial: list[str], odd: list[str], slices: int, shape: SliceShape) -> str:
    parts = partial[:NAMED_SLICES] + sorted(odd)[:NAMED_SLICES]
    left_out = len(partial) + len(odd) - len(parts)
    if left_out > 0:
        parts.append(f"{left_out} more like these")
    seen = len(whole) + len(partial)
    if seen < slices:
        parts.append(f"{seen} of {slices} slices seen")
    hosts = f"{shape.hosts} host" + ("s" if shape.hosts > 1 else "")
    return f"{len(whole)} of {slices} slices of {hosts} whole; " + "; ".join(parts)


def order(slices: Iterable[tuple[Host, ...]], indexes: Mapping[str, int | None]) -> list[tuple[Host, ...]]:
    """Slices by the replica index that each host (by node id) reports, or by name where those do not differ."""
    known = [tuple(replace(host, slice_index=indexes.get(host.node_id)) for host in hosts) for hosts in slices]
    by_index = {hosts[0].slice_index for hosts in known}
    if None not in by_index and len(by_index) == len(known):
        return sorted(known, key=lambda hosts: hosts[0].slice_index or 0)
    return sorted(known, key=lambda hosts: hosts[0].slice_name)
