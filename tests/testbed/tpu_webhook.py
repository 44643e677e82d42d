"""A stand-in for Google's KubeRay TPU webhook: `python -m tests.testbed.tpu_webhook PORT CERTIFICATE`.

The real one (ai-on-gke/kuberay-tpu-webhook) comes with GKE's Ray add-on. This changes what version 1.4 of it changes in
pods that it would select, and refuses what it refuses, so that a job is seen to survive it. Follows its source as read;
unverified on GKE. Left out: sub-slices, and its affinity, where KubeRay's labels already carry ours.
"""

import base64
import copy
import json
import ssl
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from typing import Any

Json = dict[str, Any]

TPU, TOPOLOGY = "google.com/tpu", "cloud.google.com/gke-tpu-topology"
CLUSTER, GROUP = "ray.io/cluster", "ray.io/group"
REPLICA_INDEX, HOST_INDEX = "ray.io/worker-group-replica-index", "ray.io/replica-host-index"
BUILDER_PORT, MEGASCALE_PORT = 8471, 8081
SKIP = "cloud.google.com/skip-tpu-webhook-check"


class Refused(Exception):
    """The request is denied; the message is the API server's to show."""


class Replicas:
    """Numbers of the replicas of single-host groups, which carry no host index: counted as their pods come."""

    def __init__(self) -> None:
        self._count: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()

    def next(self, *group: str) -> int:
        """The next number of a group."""
        with self._lock:
            self._count[group] += 1
            return self._count[group] - 1


def mutated(pod: Json, replicas: Replicas) -> Json:
    """The pod as the webhook leaves it. Raises Refused."""
    metadata, spec = pod["metadata"], pod["spec"]
    labels = metadata.get("labels", {})
    chips = sum(map(chips_of, spec["containers"]))
    if not chips or metadata.get("annotations", {}).get(SKIP) == "true":
        return pod
    for label in (CLUSTER, GROUP):
        if label not in labels:
            raise Refused(f"Ray Pod created by KubeRay missing {label} label")
    topology = spec.get("nodeSelector", {}).get(TOPOLOGY)
    if not topology:
        raise Refused(f"missing nodeSelector {TOPOLOGY}")
    hosts = hosts_of(topology, chips)
    pod = copy.deepcopy(pod)
    if REPLICA_INDEX in labels and HOST_INDEX in labels:
        replica, host = int(labels[REPLICA_INDEX]), int(labels[HOST_INDEX])
    else:
        replica, host = replicas.next(metadata.get("namespace", ""), labels[CLUSTER], labels[GROUP]), 0
        pod["metadata"]["labels"]["replicaIndex"] = f"{labels[GROUP]}-{replica}"
    domain, group = headless(labels[CLUSTER]), labels[GROUP]
    names = [f"{group}-{replica}-{i}.{domain}" for i in range(hosts)] if hosts > 1 else ["localhost"]
    if hosts > 1:
        pod["spec"] |= {"hostname": f"{group}-{replica}-{host}", "subdomain": domain}
    for container in pod["spec"]["containers"]:
        if chips_of(container):
            v7x = spec["nodeSelector"].get("cloud.google.com/gke-tpu-accelerator", "").startswith("tpu7x")
            _add(container, _identity(names, topology, chips, f"{group}-{replica}", host, v7x))
            if _value(container, "MEGASCALE_NUM_SLICES"):
                _add(container, _megascale(replica, f"{group}-0-0.{domain}"))
    return pod


def _identity(names: list[str], topology: str, chips: int, name: str, host: int, v7x: bool) -> dict[str, str]:
    devices = chips * (2 if v7x else 1)
    grid = ([*topology.split("x"), "1"])[:3] + (["2"] if v7x else [])
    added = {
        "TORCH_TPU_TOPOLOGY": ",".join(grid),
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(f"{n}:{BUILDER_PORT + i}" for n in names for i in range(devices)),
        "TPU_WORKER_ID": str(host),
        "TPU_NAME": name,
    }
    return added | ({"TPU_WORKER_HOSTNAMES": ",".join(names)} if len(names) > 1 else {})


def _megascale(replica: int, coordinator: str) -> dict[str, str]:
    return {
        "MEGASCALE_SLICE_ID": str(replica),
        "MEGASCALE_COORDINATOR_ADDRESS": coordinator,
        "MEGASCALE_PORT": str(MEGASCALE_PORT),
    }


def _value(container: Json, name: str) -> str:
    """Of a literal; what comes from somewhere else counts as unset, as it does for the real one."""
    return next((v.get("value", "") for v in container.get("env", []) if v["name"] == name), "")


def _add(container: Json, variables: dict[str, str]) -> None:
    if _value(container, "TORCH_TPU_TOPOLOGY"):  # the off-switch of that part
        variables = {name: value for name, value in variables.items() if not name.startswith("TORCH_TPU")}
    added = [{"name": name, "value": value} for name, value in variables.items() if not _value(container, name)]
    container["env"] = container.get("env", []) + added


def chips_of(container: Json) -> int:
    """Chips that a container asks for."""
    resources = container.get("resources", {})
    return int((resources.get("limits") or resources.get("requests") or {}).get(TPU, 0))


def hosts_of(topology: str, chips: int) -> int:
    """Hosts of a slice whose pods ask for that many chips each."""
    return max(prod(map(int, topology.split("x"))) // chips, 1)


def headless(cluster: str) -> str:
    """The headless service's name, cut as KubeRay cuts names."""
    name = f"{cluster}-headless"[-50:]
    return name if name[0].isalpha() else "r" + name[1:]


def check(cluster: Json) -> None:
    """Raises Refused where a TPU group's numOfHosts does not fit its topology."""
    for group in cluster["spec"].get("workerGroupSpecs", []):
        spec = group["template"]["spec"]
        chips = sum(map(chips_of, spec["containers"]))
        if not chips:
            continue
        topology = spec.get("nodeSelector", {}).get(TOPOLOGY)
        if not topology or group.get("numOfHosts", 1) != hosts_of(topology, chips):
            raise Refused(f"numOfHosts of group {group['groupName']} does not fit its topology and {TPU}")


class Handler(BaseHTTPRequestHandler):
    """Answers AdmissionReviews: /mutate for pods, /validate for RayClusters."""

    replicas = Replicas()

    def do_POST(self) -> None:
        """One review."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        response: Json = {"uid": request["uid"], "allowed": True}
        try:
            if self.path.startswith("/mutate"):
                pod = request["object"]
                pod["metadata"].setdefault("namespace", request["namespace"])
                changed = mutated(pod, self.replicas)
                paths = (("/spec", changed["spec"]), ("/metadata/labels", changed["metadata"].get("labels", {})))
                patch = json.dumps([{"op": "replace", "path": path, "value": value} for path, value in paths])
                if changed is not pod:
                    response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch.encode()).decode()}
            else:
                check(request["object"])
        except Refused as refused:
            response |= {"allowed": False, "status": {"code": 403, "message": str(refused)}}
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the API server's audit log has it."""


def configurations(url: str, authority: str) -> list[Json]:
    """What registers it, with the real one's rules and selectors. `authority`: the CA's certificate in base64."""

    def hook(name: str, path: str, group: str, kind: str) -> Json:
        rule = {"operations": ["CREATE"], "apiGroups": [group], "apiVersions": ["v1"], "resources": [kind]}
        return {
            "name": name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "clientConfig": {"url": f"{url}/{path}", "caBundle": authority},
            "rules": [rule],
        }

    pods = hook("kuberay-tpu-mutating-webhook-cfg.kuberay.io", "mutate", "", "pods")
    pods["objectSelector"] = {"matchLabels": {"app.kubernetes.io/name": "kuberay"}}
    system = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "kube-node-lease"]}
    pods["namespaceSelector"] = {"matchExpressions": [system]}
    clusters = hook("kuberay-tpu-validating-webhook-cfg.kuberay.io", "validate", "ray.io", "rayclusters")
    registration = {"apiVersion": "admissionregistration.k8s.io/v1"}
    return [
        registration
        | {
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": f"kuberay-tpu-{kind.lower()}-webhook-cfg"},
            "webhooks": [webhook],
        }
        for kind, webhook in (("Mutating", pods), ("Validating", clusters))
    ]


def main() -> None:
    """Serve on loopback until the bed ends."""
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
