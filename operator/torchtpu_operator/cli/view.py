"""What both screens know of a run: the state of pods and ranks, in words and in places."""

from dataclasses import dataclass, field

from torchtpu_operator.cli.sources import printable
from torchtpu_operator.contract.progress import Progress
from torchtpu_operator.local.pods import Plan
from torchtpu_operator.local.screen import PodState
from torchtpu_operator.tpu.ranks import chip_coordinates, chip_of, host_coordinates, rank_of
from torchtpu_operator.tpu.slices import SliceShape, slice_shape


@dataclass
class View:
    """State of one run; the shape is the job's."""

    plan: Plan
    pods: dict[str, PodState] = field(default_factory=dict)
    record: Progress | None = None

    @property
    def shape(self) -> SliceShape:
        """Shape of each slice."""
        spec = self.plan.spec
        return slice_shape(spec.accelerator, spec.topology, spec.chips_per_host)

    def alive_hosts(self) -> int:
        """Hosts whose Ray node answers."""
        return sum(self.pods.get(pod.name) == "alive" for pod in self.plan.workers)

    def rank_states(self) -> dict[int, str]:
        """State by rank, for those that the driver knows."""
        hosts = self.record.hosts if self.record else ()
        return {rank: state for host in hosts for rank, state in zip(host.ranks, host.states, strict=False)}

    def step_text(self) -> str:
        """`step 30/330  12.3 steps/s  loss 0.42`; empty before the first report."""
        record = self.record
        if record is None or record.step is None:
            return ""
        parts = [f"step {record.step}" + (f"/{record.total}" if record.total else "")]
        if record.rate is not None:
            parts.append(f"{record.rate:.3g} steps/s")
        ordered = sorted(record.metrics.items(), key=lambda item: (item[0] != "loss", item[0]))
        parts += [f"{name[:20]} {value:.4g}" for name, value in ordered[:3]]
        return printable("  ".join(parts).replace("\n", " "))

    def device_grid(self, slice_id: int, host: int) -> list[list[int]]:
        """Ranks of a host as its chips lie: rows of y, devices along x."""
        shape = self.shape
        x0, y0, _ = chip_coordinates(shape, host, 0)
        rows: dict[int, list[tuple[int, int]]] = {}
        for device in range(shape.devices_per_host):
            x, y, _ = chip_coordinates(shape, host, chip_of(shape, device))
            rows.setdefault(y - y0, []).append((x - x0, rank_of(shape, slice_id, host, device)))
        return [[rank for _, rank in sorted(row)] for _, row in sorted(rows.items())]

    def host_rows(self) -> list[tuple[str, list[int]]]:
        """Hosts as they lie in the slice: a label for the layer, and a row of host numbers along x."""
        shape = self.shape
        rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for host in range(shape.hosts):
            x, y, z = host_coordinates(shape, host)
            rows.setdefault((z, y), []).append((x, host))
        deep = shape.hosts_grid[2] > 1
        return [
            (f"z={z}" if deep and y == 0 else "", [h for _, h in sorted(row)]) for (z, y), row in sorted(rows.items())
        ]
