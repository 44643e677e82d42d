"""The driver's hands on the hosts: one agent actor for each, asked in parallel, and what becomes of them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from torchtpu_operator.runtime.agent import Agent
from torchtpu_operator.runtime.gather import Host, order
from torchtpu_operator.runtime.plan import RankPlan
from torchtpu_operator.runtime.stream import CHUNK

WAIT_S = 0.2  # how soon a signal or a marker is noticed
LONG_POLL_S = 1.0
ANSWER_S = 30.0  # for a call that does no work


class HostGoneError(Exception):
    """A host went away before its ranks ran."""


class Crew:
    """Agents of all hosts; a context manager that lets them go."""

    def __init__(self, slices: Iterable[tuple[Host, ...]], devices_per_host: int) -> None:
        self.slices = list(slices)
        self.lost: dict[str, str] = {}  # address: how it went away
        self._ended: set[str] = set()  # node ids from which nothing more comes
        self._seen: dict[str, int] = {}
        self._polls: dict[Any, Host] = {}
        self._by_rank: dict[int, Host] = {}
        actor = ray.remote(Agent)
        self._agents = {
            host.node_id: actor.options(
                num_cpus=0,
                resources={"TPU": devices_per_host},
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
                scheduling_strategy=NodeAffinitySchedulingStrategy(host.node_id, soft=False),
            ).remote()
            for host in self.hosts
        }

    @property
    def hosts(self) -> list[Host]:
        """All hosts, slice by slice."""
        return [host for hosts in self.slices for host in hosts]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self._agents.values():  # a launcher that still runs stops its ranks with their grace
            ray.kill(agent)

    def order(self, indexes: Mapping[str, int | None]) -> None:
        """Put the slices in order of KubeRay's replica index."""
        self.slices = order(self.slices, indexes)

    def facts(self, timeout_s: float, stopped: Callable[[], str | None]) -> dict[str, dict[str, Any]]:
        """What each agent says of its host, by node id. Raises HostGoneError, TimeoutError."""
        asked = {self._agents[host.node_id].facts.remote(): host for host in self.hosts}
        return self._collect(asked, timeout_s, "did not start its agent", stopped)

    def start(self, table: Sequence[RankPlan], argv: Sequence[str], cwd: str | None, grace_s: float) -> str | None:
        """Start all ranks; a sentence if the entrypoint cannot run on a host. Raises HostGoneError, TimeoutError."""
        ranks: dict[Host, dict[int, dict[str, str]]] = {host: {} for host in self.hosts}
        for plan in table:
            host = self.slices[plan.position.slice_id][plan.position.host]
            ranks[host][plan.position.rank] = plan.environment
            self._by_rank[plan.position.rank] = host
        request = {"argv": list(argv), "cwd": cwd, "grace_s": grace_s}
        asked = {self._agents[h.node_id].start.remote(request | {"ranks": mine}): h for h, mine in ranks.items()}
        faults = self._collect(asked, ANSWER_S, "did not start its ranks", lambda: None)
        bad = [host for host in self.hosts if faults[host.node_id]]
        return f"{faults[bad[0].node_id]} on host {bad[0].address}" if bad else None

    def _collect(
        self, asked: dict[Any, Host], timeout_s: float, failing: str, stopped: Callable[[], str | None]
    ) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        answers, pending = {}, list(asked)
        while pending:
            ready, pending = ray.wait(pending, num_returns=1, timeout=WAIT_S)
            for answer in ready:
                host = asked[answer]
                try:
                    answers[host.node_id] = ray.get(answer)
                except RayActorError as error:
                    raise HostGoneError(f"host {host.address} went away before its ranks ran") from error
            if why := stopped():
                raise HostGoneError(why)
            if pending and time.monotonic() > deadline:
                late = ", ".join(asked[answer].address for answer in pending[:8])
                raise TimeoutError(f"host {late} {failing} in {timeout_s:.0f} s")
        return answers

    @property
    def unfinished(self) -> list[str]:
        """Addresses of hosts that may still run something."""
        return [h.address for h in self.hosts if h.node_id not in self._ended]

    @property
    def all_done(self) -> bool:
        """Whether nothing runs on any host any more."""
        return not self.unfinished

    def poll(self, offsets: Mapping[int, int]) -> list[dict[str, Any]]:
        """Answers of agents that have something to say, after at most WAIT_S. Notes hosts that ended or went away."""
        busy = set(self._polls.values())
        for host in self.hosts:
            if host.node_id not in self._ended and host not in busy:
                mine = {rank: at for rank, at in offsets.items() if self._by_rank[rank] == host}
                agent = self._agents[host.node_id]
                self._polls[agent.poll.remote(self._seen.get(host.node_id, 0), mine, CHUNK, LONG_POLL_S)] = host
        ready, _ = ray.wait(list(self._polls), num_returns=1, timeout=WAIT_S)
        ready, _ = ray.wait(list(self._polls), num_returns=len(self._polls), timeout=0) if ready else (ready, [])
        answers = []
        for reference in ready:
            host = self._polls.pop(reference)
            try:
                answer = ray.get(reference)
            except ActorUnavailableError:
                continue  # asked again; Ray decides when it is dead
            except RayActorError:
                self.lost[host.address] = "its agent or its node died"
                self._ended.add(host.node_id)
                continue
            self._note(host, answer["events"])
            answers.append(answer)
        return answers

    def _note(self, host: Host, events: list[dict[str, Any]]) -> None:
        self._seen[host.node_id] = self._seen.get(host.node_id, 0) + len(events)
        for event in events:
            if event["event"] in ("done", "lost"):
                self._ended.add(host.node_id)
            if event["event"] == "lost":
                self.lost[host.address] = "its launcher was killed"
            elif event["event"] == "stopping" and event["reason"] in ("marker", "signal"):
                self.lost[host.address] = "its pod was told to stop"

    def stop(self) -> None:
        """Ask every host to stop its ranks."""
        for agent in self._agents.values():
            agent.stop.remote()

    def output(self, rank: int, offset: int) -> tuple[int, bytes]:
        """A rank's output from `offset`, or its end if that is below 0; nothing if its host is gone."""
        host = self._by_rank[rank]
        try:
            answer = ray.get(
                self._agents[host.node_id].poll.remote(1 << 30, {rank: offset}, CHUNK, 0), timeout=ANSWER_S
            )
        except (RayActorError, GetTimeoutError):
            return max(offset, 0), b""
        begin, data = answer["output"][rank]
        return begin, data
