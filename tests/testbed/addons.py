"""What runs on the control plane as host processes: KubeRay, KWOK, Kueue. Each with its own CRDs and real settings."""

from __future__ import annotations

import base64
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from tests.testbed import tpu_webhook
from tests.testbed.cache import binary, share
from tests.testbed.processes import answers

if TYPE_CHECKING:
    from tests.testbed.controlplane import ControlPlane

KWOK_ANNOTATION = {"kwok.x-k8s.io/node": "fake"}  # on Node objects whose kubelet KWOK plays
KUEUE_NAMESPACE = "kueue-system"
# Frameworks whose CRDs the bed has, or that Kubernetes brings.
KUEUE_FRAMEWORKS = ["batch/job", "ray.io/rayjob", "ray.io/raycluster", "ray.io/rayservice"]

# Without its own certificate management, Kueue insists on a metrics certificate at a fixed path below /etc: it gets an
# /etc of its own, which any user may make on Debian.
_WITH_METRICS_CERTIFICATES = (
    'mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics && ln -s "$1" /etc/kueue/metrics/certs && shift && '
    'exec "$@"'
)


# Only KubeRay asks the cluster's DNS; everything else here keeps the machine's.
_WITH_RESOLVER = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'


def start_kuberay(plane: ControlPlane) -> None:
    """KubeRay's operator. Without cluster DNS it reads Ray dashboards through the API server, with no time limit."""
    crds = share("kuberay") / "crd/bases"
    plane.kubectl("apply", "--server-side", "-f", str(crds))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(crds))
    health = f"127.0.0.1:{plane.ports['kuberay-health']}"
    way: list[str | Path] = ["--use-kubernetes-proxy"]
    resolver: list[str | Path] = []
    if plane.options.dns:
        (plane.folder / "resolv.conf").write_text(f"nameserver {plane.options.dns}\n")
        way, resolver = [], ["unshare", "--mount", "sh", "-c", _WITH_RESOLVER, "sh", plane.folder / "resolv.conf"]
    plane.processes.start(
        "kuberay", *resolver, binary("kuberay"), "--enable-leader-election=false", *way,
        f"--metrics-addr=127.0.0.1:{plane.ports['kuberay-metrics']}", f"--health-probe-bind-address={health}",
        env={"KUBECONFIG": str(plane.kubeconfig_of("kuberay")), "POD_NAMESPACE": "default"},
    )  # fmt: skip
    plane.processes.wait(lambda: answers(f"http://{health}/readyz"), "KubeRay", "kuberay")


def start_kwok(plane: ControlPlane) -> None:
    """KWOK, which plays the kubelet of nodes with its annotation: their pods run at once, and nothing runs in them."""
    stages = [share("kwok") / "stage" / f"{name}.yaml" for name in ("pod/fast/pod-ready", "pod/fast/pod-delete")]
    stages.append(share("kwok") / "stage/node/fast/node-initialize.yaml")
    ((key, value),) = KWOK_ANNOTATION.items()
    plane.processes.start(
        "kwok", binary("kwok"), f"--kubeconfig={plane.kubeconfig_of('kwok')}", "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={key}={value}", *(f"--config={stage}" for stage in stages),
    )  # fmt: skip


def start_kueue(plane: ControlPlane) -> None:
    """Kueue's manager; its webhooks are reached at this machine's address instead of a Service."""
    folder, port = plane.folder / "kueue", plane.ports["kueue-webhook"]
    folder.mkdir()
    certificate = plane.ca.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
    certificate.private_key_pem.write_to_path(str(folder / "tls.key"))
    health = f"127.0.0.1:{plane.ports['kueue-health']}"
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": KUEUE_NAMESPACE,
        "health": {"healthProbeBindAddress": health},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": KUEUE_FRAMEWORKS},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    crds = share("kueue") / "components/crd/bases"
    plane.kubectl("apply", "--server-side", "-f", str(crds))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(crds))
    plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": KUEUE_NAMESPACE}}])
    plane.processes.start(
        "kueue", "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _WITH_METRICS_CERTIFICATES, "sh",
        folder, binary("kueue"), f"--config={folder}/config.yaml", "--feature-gates=VisibilityOnDemand=false",
        env={"KUBECONFIG": str(plane.kubeconfig_of("kueue"))},
    )  # fmt: skip
    plane.processes.wait(lambda: answers(f"http://{health}/readyz"), "Kueue", "kueue")
    plane.processes.wait(lambda: _listens(port), "Kueue's webhooks", "kueue")
    plane.apply(_kueue_webhooks(plane, port))


def _kueue_webhooks(plane: ControlPlane, port: int) -> list[Any]:
    """Kueue's own webhook configurations for the frameworks that are on, with a URL in place of the Service."""
    authority = base64.b64encode(plane.ca.cert_pem.bytes()).decode()
    groups = {"kueue.x-k8s.io"} | {framework.split("/")[0] for framework in KUEUE_FRAMEWORKS}
    text = (share("kueue") / "components/webhook/manifests.yaml").read_text()
    configurations = [item for item in yaml.safe_load_all(text) if item]
    for configuration in configurations:
        configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
        kept = [hook for hook in configuration["webhooks"] if _groups(hook) <= groups]
        for hook in kept:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
        configuration["webhooks"] = kept
    return configurations


def _groups(hook: Any) -> set[str]:
    return {group for rule in hook["rules"] for group in rule["apiGroups"]}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start_tpu_webhook(plane: ControlPlane) -> None:
    """The stand-in for the TPU webhook of GKE's Ray add-on."""
    port, certificate = plane.ports["tpu-webhook"], plane.folder / "tpu-webhook.pem"
    plane.ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    plane.processes.start(
        "tpu-webhook", sys.executable, "-m", tpu_webhook.__name__, str(port), certificate,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    plane.processes.wait(lambda: _listens(port), "the TPU webhook", "tpu-webhook")
    authority = base64.b64encode(plane.ca.cert_pem.bytes()).decode()
    plane.apply(tpu_webhook.configurations(f"https://127.0.0.1:{port}", authority))


START = {"kuberay": start_kuberay, "kwok": start_kwok, "kueue": start_kueue, "tpu_webhook": start_tpu_webhook}
