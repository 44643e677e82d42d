"""From a rendered RayJob to the processes that stand for its pods on this machine. Pure: starts and writes nothing.

It plays KubeRay (labels, `ray start`, submitter) and the kubelet (downward API, mounts). What a laptop cannot give is
substituted, and every substitution is in the list that the user sees.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from torchtpu_operator.contract import names
from torchtpu_operator.contract.job import JobSpec
from torchtpu_operator.local import objects
from torchtpu_operator.local.objects import Json, Mounts, PodFacts, UnsupportedObject
from torchtpu_operator.tpu.environment import IDENTITY_VARIABLES

ENV_MARK = "TTJ_LOCAL_RUN"  # in every process of a run: its scratch folder; how leftovers are found
TERMINATION_FILE = "termination.json"
OBJECT_STORE_BYTES = 80_000_000  # about the least that Ray takes
STOP_GRACE_S = 10.0
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a path in the pod
FORGOTTEN = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME")  # of this shell: not the image's
FORGOTTEN_PREFIXES = ("RAY_", "TTJ_", "TORCHELASTIC_")


@dataclass(frozen=True, slots=True)
class Site:
    """What this run has of this machine. Addresses are `network`.1 (head), .2 … (hosts)."""

    output: Path  # kept: logs and results
    scratch: Path  # short, removed at the end
    volumes: Path  # kept over runs: what stands for claims and buckets
    workdir: Path
    python: str
    network: str
    gcs_port: int
    dashboard_port: int
    client_port: int
    agent_port: int
    token: str
    shell: Mapping[str, str] = field(default_factory=dict)  # environment that `ttj` was started in

    def address(self, number: int) -> str:
        """Address of the head (0) or of a host, counted over all slices from 1."""
        return f"{self.network}.{number + 1}"

    @property
    def tools(self) -> Path:
        """Folder with `python` and `ray` of this interpreter."""
        return self.scratch / "bin"


@dataclass(frozen=True, slots=True)
class Command:
    """A process: what to run, where."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str


@dataclass(frozen=True, slots=True)
class LocalPod:
    """Processes that stand for one pod: init containers one after another, then the main one."""

    name: str
    role: Literal["head", "worker", "submitter"]
    address: str
    init: tuple[Command, ...]
    main: Command
    pre_stop: Command | None = None
    slice_id: int = 0
    host: int = 0
    run_dir: Path = Path()
    folders: tuple[Path, ...] = ()  # to be made before


@dataclass(frozen=True, slots=True)
class Plan:
    """All of a run."""

    spec: JobSpec
    head: LocalPod
    workers: tuple[LocalPod, ...]
    submitter: LocalPod
    substitutions: tuple[tuple[str, str], ...]  # (what, with what)
    termination: Path


def job_record(rayjob: Json) -> JobSpec:
    """The job's record, which the renderer puts on the head. Raises UnsupportedObject."""
    head = rayjob["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    given = {entry["name"]: entry.get("value") for entry in head.get("env", [])}
    if not given.get(names.ENV_JOB):
        raise UnsupportedObject(f"the head has no {names.ENV_JOB}: not an object that this operator rendered")
    return JobSpec.from_json(objects.expand(given[names.ENV_JOB], {}))


def plan(rayjob: Json, site: Site, random: Random) -> Plan:
    """Raises UnsupportedObject where the object asks for what cannot be played here."""
    return _Planner(rayjob, site, random).plan()


def ray_folder(scratch: Path, address: str) -> Path:
    """A node's own sockets, short for the limit of 107; nodes would race for names in a shared folder."""
    return scratch / f"r{address.rsplit('.', 1)[1]}"


class _Planner:
    def __init__(self, rayjob: Json, site: Site, random: Random) -> None:
        self.metadata: Json = rayjob["metadata"]
        self.spec: Json = rayjob["spec"]
        self.site = site
        self.random = random
        self.cluster = f"{self.metadata['name']}-{self._suffix()}"
        self.said: dict[str, str] = {}
        self.job = job_record(rayjob)

    def plan(self) -> Plan:
        cluster = self.spec["rayClusterSpec"]
        self._general(cluster)
        workers: list[LocalPod] = []
        for group in cluster["workerGroupSpecs"]:
            workers += self._group(group, len(workers))
        head = self._ray_pod("head", cluster["headGroupSpec"], self.site.address(0), {}, None)
        submitter = self._submitter()
        termination = self.site.output / TERMINATION_FILE
        return Plan(self.job, head, tuple(workers), submitter, tuple(self.said.items()), termination)

    def _general(self, cluster: Json) -> None:
        container = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
        self.said[f"image {container.get('image', '')}"] = f"the Python that runs ttj: {self.site.python}"
        self.said["TPU hosts"] = (
            "processes on this machine, each with a loopback address; chips are simulated, ranks use gloo on CPU"
        )
        self.said["CPU and memory limits"] = "not applied"
        self.said["ports"] = f"free ones: Ray {self.site.gcs_port}, dashboard {self.site.dashboard_port}"
        self.said["network"] = f"{self.site.network}.0/24"
        self.said["environment of the image"] = "that of this shell, without Ray's, TPU identity and PYTHONPATH"
        if self.job.stop_grace_s > STOP_GRACE_S:
            self.said[f"stop grace {self.job.stop_grace_s:g} s"] = f"{STOP_GRACE_S:g} s"

    def _suffix(self) -> str:
        return "".join(self.random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))

    def _group(self, group: Json, first: int) -> list[LocalPod]:
        """Pods of a worker group, with KubeRay 1.6's labels."""
        hosts, name = group.get("numOfHosts", 1), group["groupName"]
        pods: list[LocalPod] = []
        for replica in range(group.get("replicas", 0)):
            labels = {names.LABEL_REPLICA_INDEX: str(replica)}
            if hosts > 1:
                labels[names.LABEL_REPLICA_NAME] = f"{name}-{self._suffix()}"
            for host in range(hosts):
                own = labels | ({names.LABEL_HOST_INDEX: str(host)} if hosts > 1 else {})
                address = self.site.address(first + len(pods) + 1)
                pods.append(self._ray_pod(f"slice-{replica}-host-{host}", group, address, own, (replica, host)))
        return pods

    def _ray_pod(
        self, name: str, group: Json, address: str, labels: Mapping[str, str], place: tuple[int, int] | None
    ) -> LocalPod:
        template, group_name = group["template"], group.get("groupName", "headgroup")
        node_type = "worker" if place else "head"
        labels = {
            **template.get("metadata", {}).get("labels", {}),
            names.LABEL_RAY_CLUSTER: self.cluster,
            names.LABEL_RAY_GROUP: group_name,
            names.LABEL_RAY_NODE_TYPE: node_type,
            **labels,
        }
        pod = (
            f"{self.cluster}-{group_name}-worker-{self._suffix()}" if place else f"{self.cluster}-head-{self._suffix()}"
        )
        metadata = {**template.get("metadata", {}), "labels": labels, "name": pod}
        metadata |= {"namespace": self.metadata.get("namespace", "default"), "uid": pod}
        container = template["spec"]["containers"][0]
        facts = PodFacts(metadata, address, container.get("resources", {}))
        mounts, folders = self._mounts(name, template["spec"], container)
        environment = self._environment(name, container, facts, mounts)
        environment |= self._kuberay(pod, group_name, address, head=place is None)
        environment.pop(names.ENV_POD_STDOUT, None)  # ranks have bounded logs of their own; nobody rotates this one
        environment[names.ENV_RUN_DIR] = str(self.site.output / name)
        if place is None:
            environment[names.ENV_JOB] = self._job(mounts).to_json()
            environment["RAY_JOB_STOP_WAIT_TIME_S"] = str(int(STOP_GRACE_S) + 20)
        main = Command(self._start(group, container, mounts, environment, address), environment, str(self.site.workdir))
        init = [self._init(name, template["spec"], c, facts) for c in template["spec"].get("initContainers", [])]
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        pre_stop = Command(self._argv(hook, mounts, environment), environment, main.cwd) if hook else None
        slice_id, host = place or (0, 0)
        return LocalPod(
            name, "worker" if place else "head", address, tuple(init), main, pre_stop, slice_id, host,
            self.site.output / name, (*folders, self.site.output / name),
        )  # fmt: skip

    def _start(
        self, group: Json, container: Json, mounts: Mounts, environment: Mapping[str, str], address: str
    ) -> tuple[str, ...]:
        site, head = self.site, "groupName" not in group
        flags = objects.ray_start(group, container, head) | {
            "node-ip-address": address,
            "object-store-memory": str(OBJECT_STORE_BYTES),
            "dashboard-agent-listen-port": str(site.agent_port),
            "temp-dir": str(ray_folder(site.scratch, address)),
            "include-log-monitor": "false",
        }
        flags.pop("metrics-export-port", None)
        if head:
            flags |= {"port": str(site.gcs_port), "dashboard-host": address, "dashboard-port": str(site.dashboard_port)}
            flags |= {"ray-client-server-port": str(site.client_port)}
            flags["no-monitor"] = "true"  # the autoscaler: nothing to scale here
        else:
            flags["address"] = f"{site.address(0)}:{site.gcs_port}"
        start = [str(site.tools / "ray"), "start", *objects.command_line(flags)]
        own = [*container.get("command", []), *container.get("args", [])]
        if not own:
            return tuple(start)
        text = mounts.text(objects.expand(" ".join(own), environment))  # KubeRay joins them raw, before `ray start`
        return ("/bin/bash", "-c", "--", f"{text} && exec {shlex.join(start)}")

    def _kuberay(self, pod: str, group: str, address: str, head: bool) -> dict[str, str]:
        """Variables that KubeRay 1.6 adds, and those that make Ray patient, quiet and small."""
        site = self.site
        server = f"{site.address(0)}:{site.gcs_port}"
        added = {
            "RAY_CLUSTER_NAME": self.cluster,
            "RAY_CLUSTER_NAMESPACE": self.metadata.get("namespace", "default"),
            "RAY_CLOUD_INSTANCE_ID": pod,
            "RAY_NODE_TYPE_NAME": group,
            "RAY_PORT": str(site.gcs_port),
            "RAY_ADDRESS": server,
            "RAY_raylet_start_wait_time_s": "300",  # many hosts share few cores
            "RAY_NUM_REDIS_GET_RETRIES": "90",  # of 2 s: how long `ray start` waits for its own node's record
            "RAY_memory_monitor_refresh_ms": "0",  # it would kill ranks because of this machine's other programs
            "RAY_prestart_worker_first_driver": "0",
            "RAY_enable_metrics_collection": "0",
        }
        return added | ({} if head else {"FQ_RAY_IP": site.address(0), "RAY_IP": site.address(0)}) | self._ray()

    def _ray(self) -> dict[str, str]:
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.site.token, "RAY_USAGE_STATS_ENABLED": "0"}

    def _job(self, mounts: Mounts) -> JobSpec:
        """The job's record with paths of this machine."""
        folder = self.job.working_dir
        if folder is not None:
            there = mounts.path(folder)
            if there is None:
                self.said[f"workingDir {folder}"] = str(self.site.workdir)
            folder = there
        return replace(
            self.job,
            entrypoint=tuple(mounts.text(word) for word in self.job.entrypoint),
            working_dir=folder,
            stop_grace_s=min(self.job.stop_grace_s, STOP_GRACE_S),
        )

    def _mounts(self, pod: str, spec: Json, container: Json) -> tuple[Mounts, list[Path]]:
        sources = {volume["name"]: volume for volume in spec.get("volumes", [])}
        folders: dict[str, Path] = {}
        for mount in container.get("volumeMounts", []):
            if mount["mountPath"] == SHARED_MEMORY:
                continue  # this machine's own is as good
            base, what = self._volume(pod, sources.get(mount["name"], {"name": mount["name"]}))
            folders[mount["mountPath"].rstrip("/")] = base / str(mount.get("subPath", "")).lstrip("/")
            if mount["name"] != names.RUNTIME_VOLUME:
                shown = str(folders[mount["mountPath"].rstrip("/")]).replace(f"/{pod}/", "/<pod>/")
                self.said[f"{what} at {mount['mountPath']}"] = shown
        return Mounts(folders), [*folders.values(), self.site.scratch / "tmp" / pod]

    def _volume(self, pod: str, volume: Json) -> tuple[Path, str]:
        """Folder that stands for a volume, and its kind in words."""
        kept, name = self.site.volumes, volume["name"]
        if claim := volume.get("persistentVolumeClaim"):
            return kept / f"claim-{claim['claimName']}", f"claim {claim['claimName']}"
        if csi := volume.get("csi"):
            bucket = csi.get("volumeAttributes", {}).get("bucketName", name)
            return kept / f"bucket-{bucket}", f"bucket {bucket}"
        if config := volume.get("configMap"):
            return kept / f"configmap-{config['name']}", f"ConfigMap {config['name']} (put its files there yourself)"
        if secret := volume.get("secret"):
            return (
                kept / f"secret-{secret['secretName']}",
                f"Secret {secret['secretName']} (put its files there yourself)",
            )
        return self.site.scratch / "pods" / pod / name, f"volume {name}"

    def _environment(self, pod: str, container: Json, facts: PodFacts, mounts: Mounts) -> dict[str, str]:
        """A container's environment: this shell's where the image's would be, then the object's."""
        environment = {
            key: value
            for key, value in self.site.shell.items()
            if key not in FORGOTTEN and key not in IDENTITY_VARIABLES and not key.startswith(FORGOTTEN_PREFIXES)
        }
        environment["PATH"] = f"{self.site.tools}:{environment.get('PATH', '/usr/bin:/bin')}"
        temporary = self.site.scratch / "tmp" / pod
        environment |= {"TMPDIR": str(temporary), "GLOO_SOCKET_IFNAME": "lo", "TPU_SKIP_MDS_QUERY": "true"}
        for source in container.get("envFrom", []):
            kind, reference = next(((k, v) for k, v in source.items() if isinstance(v, Mapping)), ("", {}))
            self.said[f"envFrom {kind} {reference.get('name', '')}"] = "nothing: only the cluster has it"
        environment |= objects.environment(container.get("env", []), facts, mounts, self._unknown)
        for entry in container.get("env", []):
            if entry["name"] == names.ENV_FILES:  # texts of the user's, not paths
                environment[names.ENV_FILES] = objects.expand(entry["value"], {})
        return environment | {ENV_MARK: str(self.site.scratch), "PYTHONUNBUFFERED": "1"}

    def _unknown(self, name: str, source: str) -> str | None:
        """A variable from a Secret or ConfigMap: this shell's variable of that name, if it is set."""
        value = self.site.shell.get(name)
        self.said[f"{name} from {source}"] = f"${name} of this shell" + (
            "" if value is not None else ", which is not set"
        )
        return value

    def _argv(self, words: list[str], mounts: Mounts, environment: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(mounts.text(objects.expand(word, environment)) for word in words)

    def _init(self, pod: str, spec: Json, container: Json, facts: PodFacts) -> Command:
        mounts, _ = self._mounts(pod, spec, container)
        environment = self._environment(pod, container, facts, mounts)
        if names.RUNTIME_MODULE in container.get("command", []):
            # The operator's image has the package; here it is where this module came from.
            environment["PYTHONPATH"] = str(Path(__file__).parents[2])
            self.said[f"image {container.get('image', '')}"] = "the package that runs ttj"
        argv = self._argv([*container.get("command", []), *container.get("args", [])], mounts, environment)
        if names.RUNTIME_MODULE in argv and "--target" not in argv:
            argv = (*argv, "--target", str(mounts.path(names.RUNTIME_PATH)))
        if not argv:
            raise UnsupportedObject(f"the init container {container['name']} has no command; only its image knows it")
        return Command(argv, environment, str(self.site.workdir))

    def _submitter(self) -> LocalPod:
        template: dict[str, Any] = self.spec["submitterPodTemplate"]
        container = template["spec"]["containers"][0]
        name, address = "submitter", self.site.address(0)
        metadata = {**template.get("metadata", {}), "name": f"{self.metadata['name']}-{self._suffix()}"}
        metadata |= {"namespace": self.metadata.get("namespace", "default"), "uid": metadata["name"]}
        facts = PodFacts(metadata, address, container.get("resources", {}))
        mounts, folders = self._mounts(name, template["spec"], container)
        environment = self._environment(name, container, facts, mounts)
        environment |= self._ray() | {
            "RAY_DASHBOARD_ADDRESS": f"{address}:{self.site.dashboard_port}",
            "RAY_JOB_SUBMISSION_ID": f"{self.metadata['name']}-{self._suffix()}",
            names.ENV_TERMINATION_LOG: str(self.site.output / TERMINATION_FILE),
        }
        argv = self._argv([*container.get("command", []), *container.get("args", [])], mounts, environment)
        init = [self._init(name, template["spec"], c, facts) for c in template["spec"].get("initContainers", [])]
        main = Command(argv, environment, str(self.site.workdir))
        return LocalPod(name, "submitter", address, tuple(init), main, folders=tuple(folders))
