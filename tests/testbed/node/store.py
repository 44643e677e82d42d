"""The bed's images, unpacked once into a containerd root that every node starts from."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.cache import cache, say
from tests.testbed.images.build import PAUSE
from tests.testbed.node.machine import run
from tests.testbed.processes import Processes

CONTENT = Path("io.containerd.content.v1.content/blobs/sha256")
SNAPSHOTS = Path("io.containerd.snapshotter.v1.overlayfs/snapshots")
DATABASES = ("io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db")
NAMESPACE = "k8s.io"

# A node has its own /run, /var/log and fixed places below /var/lib, so that nothing of it lies in this machine's.
# Its mounts end with its last process, and so does its network.
_OWN_PLACES = (
    'mount --bind "$1/log" /var/log && mount --bind "$1/kubelet" /var/lib/kubelet && '
    'mount --bind "$1/cni" /var/lib/cni && mount --bind "$1/run" /run && cd / && echo $$ >"$1/pid" && '
    'exec containerd --config "$1/containerd.toml"'
)


def start_containerd(running: Processes, name: str, place: Path) -> int:
    """Start a containerd in mounts and a network of its own; its root is `place/containerd`. Returns its pid."""
    for part in ("run", "log", "kubelet", "cni", "cni.d", "containerd"):
        (place / part).mkdir(parents=True, exist_ok=True)
    (place / "pid").unlink(missing_ok=True)
    (place / "containerd.toml").write_text(_settings(place))
    process = f"{name}-containerd"
    running.start(process, "unshare", "--mount", "--net", "sh", "-c", _OWN_PLACES, "sh", place)
    running.wait((place / "run/containerd/containerd.sock").is_socket, f"containerd of {name}", process)
    return int((place / "pid").read_text())


def _settings(place: Path) -> str:
    """A machine may refuse a lower oom_score_adj than its own; sandboxes do not need it."""
    return f"""version = 2
root = "{place}/containerd"
state = "/run/containerd"
[plugins."io.containerd.internal.v1.opt"]
  path = "{place}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/{PAUSE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{place}/cni.d"
"""


def image_store(running: Processes, archives: Sequence[Path]) -> Path:
    """A containerd root that holds the images; unpacked again when one of them changed. Raises TestbedError."""
    key = hashlib.sha256("\0".join(archive.name for archive in archives).encode()).hexdigest()[:16]
    stores = cache() / "node" / "store"
    store = stores / key
    if store.exists():
        return store
    shutil.rmtree(stores, ignore_errors=True)
    size = sum(archive.stat().st_size for archive in archives) / 2**30
    say(f"unpacking images of {size:.1f} GiB (about 30 s)")
    place = stores / "new"
    pid = start_containerd(running, "images", place)
    for archive in archives:
        run("nsenter", "-t", str(pid), "-m", "ctr", "-n", NAMESPACE, "images", "import", archive)
    running.stop("images-containerd")
    (place / "containerd").rename(store)
    shutil.rmtree(place)
    return store


def fill(root: Path, store: Path) -> None:
    """Make a containerd root that knows the store's images: links to what never changes, copies of the databases."""
    for part in (CONTENT, SNAPSHOTS):
        (root / part).mkdir(parents=True)
        for entry in (store / part).iterdir():
            (root / part / entry.name).symlink_to(entry)
    for database in DATABASES:
        (root / database).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(store / database, root / database)
