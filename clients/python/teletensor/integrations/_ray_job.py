"""A Ray Train job from the point of view of Ray's controller: which worker is which rank, and which daemon
it uses."""

from __future__ import annotations

import os
import pathlib
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
import ray.train
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._connection import daemon as _daemon
from .._connection.certificates import peer_files

__all__ = ["Job"]

_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_LEASE = 600  # seconds that a session on a daemon of the job waits for the next worker


class _Place(NamedTuple):
    """The location of a worker."""

    rank: int
    ranks: int
    node: str
    ip: str
    port: int  # a free port on the worker's node
    address: str  # the address of the daemon that is configured for the worker, or ""
    running: str  # the address of the user's running daemon, or ""


def _place() -> _Place:
    """Runs in a worker: returns its location."""
    own = _daemon.runtime_dir() / "teletensor.sock"
    context = ray.train.get_context()
    return _Place(
        context.get_world_rank(), context.get_world_size(), ray.get_runtime_context().get_node_id(),
        ray.util.get_node_ip_address(), _daemon.free_port(), os.environ.get("TELETENSOR_ADDRESS", ""),
        f"unix:{own}" if _daemon.answers(own) else "")


def _set(variables: dict[str, str]) -> None:
    """Runs in a worker: sets environment variables."""
    os.environ.update(variables)


class _NodeDaemon:
    """An actor that runs a daemon on its node. Both end with the controller, which owns the actor."""

    _daemon: subprocess.Popen[bytes]  # set when it is started

    def place(self) -> tuple[str, int]:
        """The node's address, and a free port there."""
        return ray.util.get_node_ip_address(), _daemon.free_port()

    def start(self, flags: Sequence[str], files: dict[str, str]) -> str:
        """Starts the daemon and returns its address. `files`: the contents of private files, by the flags
        that name them."""
        socket = _daemon.runtime_dir() / f"teletensor-ray-{os.getpid()}.sock"
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with tempfile.TemporaryDirectory() as folder:  # the daemon reads the files only when it starts
            for flag, text in files.items():
                path = pathlib.Path(folder, flag.strip("-"))
                path.touch(0o600)
                path.write_text(text, encoding="ascii")
                flags = [*flags, flag, str(path)]
            # The first worker may connect late, and no worker is connected while Ray restarts them.
            self._daemon = _daemon.start(
                socket, "--linger", "1e7", "--lease", str(_LEASE), "--state-dir", "", *flags,
                prefix=_daemon.ends_with_this(signal.SIGTERM, mask))
        return f"unix:{socket}"

    def end(self) -> None:
        """Ends the daemon."""
        self._daemon.terminate()
        try:
            self._daemon.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._daemon.kill()


class Job:
    """The state of a job, which the controller's backend keeps from the first start of the workers on. Only
    one thread uses it."""

    def __init__(self, address: str | None, name: str | None, daemon_flags: Sequence[str]) -> None:
        self._address, self._flags = address, list(daemon_flags)
        self._name = name or f"ray-{secrets.token_hex(8)}"
        self._variables: list[dict[str, str]] = []  # the variables of each rank
        self._nodes: list[str] = []  # the node of each rank
        self._daemons: dict[str, Any] = {}  # the actors, by node
        self._own: dict[str, str] = {}  # the addresses of the job's own daemons, by node

    def start(self, workers: Any) -> None:
        """Passes their variables to workers that Ray has started. `workers` is Ray's group of all workers,
        or of one that replaces another. RuntimeError if that one is on a node that has another daemon."""
        places: list[_Place] = workers.execute(_place)
        if len(places) == places[0].ranks:
            self._assign(places)
        for i, place in enumerate(places):
            if place.node != self._nodes[place.rank] and not self._address:
                raise RuntimeError(
                    f"teletensor: the worker of rank {place.rank} has been replaced on another node, which "
                    "does not have its session; give all nodes one daemon by "
                    "TeletensorConfig(address=...), or let Ray start all workers again "
                    "(replace_workers=False)")
            workers.execute_single(i, _set, self._variables[place.rank])

    def _assign(self, places: list[_Place]) -> None:
        """Assigns all ranks, when all workers are new."""
        places = sorted(places)
        before = self._nodes
        self._nodes = [place.node for place in places]
        nodes = list(dict.fromkeys(self._nodes))
        addresses = self._addresses(places, nodes)
        # If the nodes are the same, the world keeps its name, so that ranks that still wait in the old
        # world are notified.
        master = {name: self._variables[0][name] for name in ("MASTER_ADDR", "MASTER_PORT")
                  } if before == self._nodes else {
                      "MASTER_ADDR": places[0].ip, "MASTER_PORT": str(places[0].port)}
        self._variables = []
        for place, address in zip(places, addresses):
            local = self._nodes[:place.rank].count(place.node)
            node = str(nodes.index(place.node))
            self._variables.append({
                "RANK": str(place.rank), "WORLD_SIZE": str(len(places)), "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(self._nodes.count(place.node)),
                "GROUP_RANK": node, "NODE_RANK": node, "GROUP_WORLD_SIZE": str(len(nodes)), **master,
                "TORCHELASTIC_RUN_ID": self._name, "TELETENSOR_ADDRESS": address,
            })

    def _addresses(self, places: list[_Place], nodes: list[str]) -> list[str]:
        """The address of the daemon for each rank. Starts daemons that are missing."""
        if self._address:
            return [self._address] * len(places)
        if all(place.address for place in places):
            return [place.address for place in places]
        if len(nodes) == 1 and places[0].running and not self._own:
            return [place.running for place in places]
        if self._own.keys() != set(nodes):
            self._start_daemons(nodes)
        return [self._own[place.node] for place in places]

    def _start_daemons(self, nodes: list[str]) -> None:
        """Starts a daemon on each node. Earlier daemons are ended, because the list of peers of a running
        daemon cannot change."""
        self.end()
        self._daemons = {
            node: ray.remote(_NodeDaemon).options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
            for node in nodes}
        names = [f"node-{i}" for i in range(len(nodes))]
        files: list[dict[str, str]] = [{} for _ in nodes]
        links: list[list[str]] = [[] for _ in nodes]
        if len(nodes) > 1:
            found = ray.get([actor.place.remote() for actor in self._daemons.values()])
            places = [f"{ip}:{port}" for ip, port in found]
            peers = ",".join(f"{name}={place}" for name, place in zip(names, places))
            files = peer_files(names)
            links = [["--peer-name", name, "--peer-listen", place, "--peers", peers]
                     for name, place in zip(names, places)]
        started = [actor.start.remote([*link, *self._flags], file)
                   for actor, link, file in zip(self._daemons.values(), links, files)]
        self._own = dict(zip(nodes, ray.get(started)))

    def end(self) -> None:
        """Ends the job's own daemons, and with them their sessions."""
        if not self._daemons:
            return
        ending = [actor.end.remote() for actor in self._daemons.values()]
        ray.wait(ending, num_returns=len(ending), timeout=2 * _GRACE)  # a node may not exist any more
        for actor in self._daemons.values():
            ray.kill(actor)
        self._daemons, self._own = {}, {}
