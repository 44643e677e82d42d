"""Real nodes on this machine: containerd, kubelet and kube-proxy each, in mounts and a network of their own.

A node is described by the Node object that KWOK would play: its name, labels, taints and chips. CPU and memory are this
machine's, as the kubelet sees them.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.testbed import build
from tests.testbed.cache import TestbedError, binary, require_disk
from tests.testbed.controlplane import ControlPlane, KubectlError, Options, control_plane
from tests.testbed.images.build import Image, archives
from tests.testbed.node import machine
from tests.testbed.node.machine import ADDRESS, BRIDGE, run
from tests.testbed.node.store import fill, image_store, start_containerd

Json = dict[str, Any]

MOST = 5  # four TPU hosts and one for heads
DISK_GIB = 9.0  # archives, build layers and unpacked images 7, nodes 0.3 each
READY_S = 90.0
_ADVERTISED = ("google.com/tpu",)  # resources that no kubelet finds by itself


@dataclass(frozen=True, slots=True)
class Node:
    """A running node."""

    name: str
    number: int  # from 1
    place: Path
    pid: int  # of its containerd, which holds its mounts and network

    @property
    def address(self) -> str:
        """On the bridge."""
        return f"10.245.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        """Network of its pods."""
        return f"10.244.{self.number}.0/24"

    @property
    def link(self) -> str:
        """Its cable on the bridge: `ip link set <link> down` is a network failure."""
        return f"torchtpu-n{self.number}"

    @property
    def processes(self) -> list[str]:
        """Names of its processes."""
        return [f"{self.name}-{part}" for part in ("containerd", "kubelet", "kube-proxy")]

    def inside(self, *command: str | Path) -> list[str | Path]:
        """A command in the node's mounts and network."""
        return ["nsenter", "-t", str(self.pid), "--mount", "--net", *command]


@contextlib.contextmanager
def cluster(pools: Sequence[Json], images: Sequence[Image], kueue: bool = False) -> Iterator[ControlPlane]:
    """A control plane with KubeRay, and real nodes as described. Afterwards nothing is left. Raises TestbedError."""
    if not 1 <= len(pools) <= MOST:
        raise TestbedError(f"one to {MOST} real nodes fit this bed, {len(pools)} were asked for")
    machine.require_packages()
    require_disk(DISK_GIB, "images and nodes")
    build.ensure(build.NODE)
    files = archives(images)
    with machine.machine(), control_plane(Options(kwok=False, kueue=kueue, address=ADDRESS, dns=ADDRESS)) as plane:
        machine.note_scratch(plane.folder)
        start_nodes(plane, pools, image_store(plane.processes, files))
        yield plane


def start_nodes(plane: ControlPlane, pools: Sequence[Json], store: Path) -> list[Node]:
    """Start them side by side, and wait until all are ready. Raises TestbedError."""
    _start_dns(plane)
    nodes = [_start(plane, number, pool, store) for number, pool in enumerate(pools, 1)]
    for node, pool in zip(nodes, pools, strict=True):
        plane.processes.wait(
            lambda node=node: _ready(plane, node.name), f"node {node.name}", *node.processes, timeout_s=READY_S
        )
        _advertise(plane, pool)
    return nodes


def _start(plane: ControlPlane, number: int, pool: Json, store: Path) -> Node:
    name = pool["metadata"]["name"]
    place = machine.folder() / name
    fill(place / "containerd", store)
    node = Node(name, number, place, start_containerd(plane.processes, name, place))
    machine.make_cgroup(f"{machine.CGROUP}/{name}")
    _connect(node)
    (place / "cni.d/10-bridge.conflist").write_text(json.dumps(_network(node)))
    (place / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(node, pool)))
    (place / "kube-proxy.yaml").write_text(yaml.safe_dump(_kube_proxy(plane, node)))
    labels = ",".join(f"{key}={value}" for key, value in pool["metadata"]["labels"].items())
    plane.processes.start(
        f"{name}-kubelet", *node.inside(
            binary("kubelet"), f"--config={place}/kubelet.yaml", f"--kubeconfig={plane.kubeconfig_of('kubelet')}",
            f"--hostname-override={name}", f"--node-ip={node.address}", f"--node-labels={labels}",
        ),
    )  # fmt: skip
    plane.processes.start(f"{name}-kube-proxy", *node.inside(binary("kube-proxy"), f"--config={place}/kube-proxy.yaml"))
    return node


def _connect(node: Node) -> None:
    """A cable from the bridge to the node, and the way to its pods."""
    run("ip", "link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
    run("ip", "link", "set", node.link, "master", BRIDGE, "up")
    script = (
        f"ip link set lo up && ip address add {node.address}/24 dev eth0 && ip link set eth0 up && "
        f"ip route add default via {ADDRESS} && echo 1 >/proc/sys/net/ipv4/ip_forward"
    )
    run("nsenter", "-t", str(node.pid), "--net", "sh", "-c", script)
    run("ip", "route", "add", node.pods, "via", node.address)


def _network(node: Node) -> Json:
    ipam = {"type": "host-local", "ranges": [[{"subnet": node.pods}]]}
    bridge = {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "hairpinMode": True, "ipam": ipam}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def _kubelet(node: Node, pool: Json) -> Json:
    """Only this machine and the bed's own pods reach its port, so it asks nobody for a name."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{machine.CGROUP}/{node.name}",
        "clusterDNS": [ADDRESS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "enforceNodeAllocatable": [],
        "evictionHard": dict.fromkeys(("memory.available", "nodefs.available", "imagefs.available"), "0%"),
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "registerWithTaints": pool["spec"]["taints"],
        "resolvConf": "",
    }


def _kube_proxy(plane: ControlPlane, node: Node) -> Json:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig_of("kube-proxy"))},
        "clusterCIDR": machine.POD_NETWORK,
        "conntrack": {"maxPerCore": 0, "min": 0},  # limits of the whole kernel
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "hostnameOverride": node.name,
    }


def _start_dns(plane: ControlPlane) -> None:
    """CoreDNS at the bridge's address, for names and addresses of the cluster only."""
    corefile = plane.folder / "Corefile"
    corefile.write_text(
        f"cluster.local:53 in-addr.arpa:53 {{\n bind {ADDRESS}\n errors\n"
        f" kubernetes cluster.local in-addr.arpa {{\n  kubeconfig {plane.kubeconfig_of('coredns')}\n  ttl 1\n }}\n}}\n"
    )
    plane.processes.start("coredns", binary("coredns"), f"-conf={corefile}")


def _ready(plane: ControlPlane, name: str) -> bool:
    try:
        conditions = plane.get("node", name)["status"].get("conditions", [])
    except KubectlError:
        return False
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _advertise(plane: ControlPlane, pool: Json) -> None:
    """Say in the node's status what a device plugin would report; the kubelet admits pods by it."""
    capacity = pool["status"]["capacity"]
    amounts = {name: capacity[name] for name in _ADVERTISED if name in capacity}
    if amounts:
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        name = pool["metadata"]["name"]
        plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
