"""A real Kubernetes control plane on this machine, without root: etcd, API server, controller manager, scheduler."""

import contextlib
import json
import random
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.testbed import addons, build
from tests.testbed.cache import TestbedError, binary
from tests.testbed.processes import Processes, answers, processes

from torchtpu_operator.local.run import free_ports

Json = dict[str, Any]

SERVICE_ADDRESS = "10.96.0.1"  # of the API server, the first of the service range
SERVICE_RANGE = "10.96.0.0/16"
KUBECTL_TIMEOUT_S = 60
USERS = (
    *("admin", "kube-controller-manager", "kube-scheduler", "kuberay", "kwok", "kueue"),
    *("kubelet", "kube-proxy", "coredns"),
)
PORTS = (
    *("etcd", "etcd-peer", "api", "kuberay-metrics", "kuberay-health"),
    *("kueue-webhook", "kueue-health", "tpu-webhook"),
)
CORE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


class KubectlError(Exception):
    """What kubectl wrote on standard error."""


@dataclass(frozen=True, slots=True)
class Options:
    """What runs. `address` is where the API server listens: for pods, one that they reach."""

    kuberay: bool = True
    kwok: bool = True
    kueue: bool = False
    tpu_webhook: bool = False
    address: str = "127.0.0.1"
    dns: str = ""  # where the cluster's DNS will be; needs root
    controller_manager: tuple[str, ...] = ()  # further flags

    @property
    def addons(self) -> list[str]:
        """Names of what is on, in the order in which it starts."""
        return [name for name in addons.START if getattr(self, name)]


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane."""

    options: Options
    processes: Processes
    server: str
    token: str
    authority: Path  # certificate of the CA
    ca: trustme.CA
    ports: dict[str, int]

    @property
    def running(self) -> list[str]:
        """Names of its processes."""
        return [*CORE, *(name.replace("_", "-") for name in self.options.addons)]

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.kubeconfig_of("admin")

    def kubeconfig_of(self, user: str) -> Path:
        """Each component is a user of its own, so that the audit log tells them apart."""
        return self.folder / f"kubeconfig-{user}"

    @property
    def folder(self) -> Path:
        """Data that is gone at the end."""
        return self.processes.folder

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Output of a kubectl command. Raises KubectlError."""
        command = [kubectl(), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=KUBECTL_TIMEOUT_S
        )
        if done.returncode:
            raise KubectlError(done.stderr.strip())
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """An object, or the items of a list. Raises KubectlError."""
        found = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found["items"] if found["kind"] == "List" else found

    def apply(self, objects: Iterable[Mapping[str, Any]], *arguments: str) -> str:
        """Server-side apply of objects. Raises KubectlError."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self.kubectl("apply", "--server-side", "--force-conflicts", *arguments, "-f", "-", stdin=text)

    def audit(self) -> list[Json]:
        """Requests that the API server has answered so far, as audit events."""
        with (self.folder / "audit.log").open(encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def healthy(self) -> bool:
        """Whether the API server says that it is ready."""
        return answers(f"{self.server}/readyz", self.authority, self.token)


def kubectl() -> str:
    """The kubectl beside this interpreter. Raises TestbedError."""
    found = shutil.which("kubectl", path=str(Path(sys.executable).parent))
    if not found:
        raise TestbedError(f"there is no kubectl beside {sys.executable}; run this through make")
    return found


@contextlib.contextmanager
def control_plane(options: Options = Options()) -> Iterator[ControlPlane]:
    """Build what is missing, start it, and leave nothing behind. Raises TestbedError."""
    build.ensure([name for name in (*CORE, *options.addons) if name in build.PROGRAMS])
    with processes("control-plane") as running:
        plane = _prepare(options, running)
        _start_core(plane)
        for name in options.addons:
            addons.START[name](plane)
        running.check(*plane.running)
        yield plane


def _prepare(options: Options, running: Processes) -> ControlPlane:
    """Certificates, keys, tokens and the kubeconfig."""
    ports = dict(zip(PORTS, free_ports(len(PORTS), random.SystemRandom()), strict=True))
    folder, ca = running.folder, trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    hosts = ["127.0.0.1", "localhost", options.address, SERVICE_ADDRESS, "kubernetes.default.svc"]
    server = ca.issue_cert(*dict.fromkeys(hosts))
    server.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    (folder / "service-accounts.key").write_bytes(
        rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    (folder / "audit.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "audit.k8s.io/v1",
                "kind": "Policy",
                "omitStages": ["RequestReceived"],
                "rules": [{"level": "Metadata"}],
            }
        )
    )
    address = f"https://{options.address}:{ports['api']}"
    tokens = {user: secrets.token_hex(16) for user in USERS}
    (folder / "tokens.csv").write_text(
        "".join(f'{token},{user},{user},"system:masters"\n' for user, token in tokens.items())
    )
    for user, token in tokens.items():
        text = yaml.safe_dump(_kubeconfig(address, str(folder / "ca.pem"), token))
        (folder / f"kubeconfig-{user}").write_text(text)
    return ControlPlane(options, running, address, tokens["admin"], folder / "ca.pem", ca, ports)


def _kubeconfig(server: str, authority: str, token: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "admin"}}],
    }


def _start_core(plane: ControlPlane) -> None:
    running, folder, ports = plane.processes, plane.folder, plane.ports
    etcd, peer = (f"http://127.0.0.1:{ports[name]}" for name in ("etcd", "etcd-peer"))
    running.start(
        "etcd", binary("etcd"), "--name=testbed", f"--data-dir={folder}/etcd", "--unsafe-no-fsync", "--log-level=warn",
        f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=testbed={peer}",
    )  # fmt: skip
    running.wait(lambda: answers(f"{etcd}/health"), "etcd", "etcd")
    running.start("kube-apiserver", binary("kube-apiserver"), *_api_server(plane, etcd))
    running.wait(plane.healthy, "the API server", "etcd", "kube-apiserver")
    running.start(
        "kube-controller-manager", binary("kube-controller-manager"),
        f"--kubeconfig={plane.kubeconfig_of('kube-controller-manager')}",
        f"--service-account-private-key-file={folder}/service-accounts.key", f"--root-ca-file={plane.authority}",
        "--leader-elect=false", "--secure-port=0", *plane.options.controller_manager,
    )  # fmt: skip
    running.start(
        "kube-scheduler", binary("kube-scheduler"), f"--kubeconfig={plane.kubeconfig_of('kube-scheduler')}",
        "--leader-elect=false", "--secure-port=0",
    )  # fmt: skip
    running.wait(lambda: _has_default_account(plane), "the default service account", *CORE)


def _has_default_account(plane: ControlPlane) -> bool:
    """Made by the controller manager; without it no pod is admitted."""
    with contextlib.suppress(KubectlError):
        return bool(plane.kubectl("get", "serviceaccount", "default", "-o", "name"))
    return False


def _api_server(plane: ControlPlane, etcd: str) -> list[str]:
    """Flags. Admission, aggregation and header authentication as on GKE; the audit log is for counting requests."""
    folder, loopback = plane.folder, plane.options.address.startswith("127.")
    reached = ["--endpoint-reconciler-type=none"] if loopback else [f"--advertise-address={plane.options.address}"]
    return [
        f"--etcd-servers={etcd}",
        f"--bind-address={plane.options.address}",
        f"--secure-port={plane.ports['api']}",
        f"--tls-cert-file={folder}/server.pem",
        f"--tls-private-key-file={folder}/server.pem",
        f"--client-ca-file={plane.authority}",
        f"--service-account-key-file={folder}/service-accounts.key",
        f"--service-account-signing-key-file={folder}/service-accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--allow-privileged=true",
        "--enable-admission-plugins=ExtendedResourceToleration,OwnerReferencesPermissionEnforcement",
        "--enable-aggregator-routing=true",
        f"--requestheader-client-ca-file={plane.authority}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        "--kubelet-preferred-address-types=InternalIP",
        f"--audit-policy-file={folder}/audit.yaml",
        f"--audit-log-path={folder}/audit.log",
        *reached,
    ]
