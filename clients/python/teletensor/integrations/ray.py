"""Runs Ray Train jobs whose workers are the ranks of a `tt.distributed` world.

See docs/distributed.md, also for input from Ray Data and for trials of Ray Tune, which need no adapter.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError
    from ray.train.backend import Backend, BackendConfig
except ImportError as error:
    raise ImportError(
        "teletensor.integrations.ray needs Ray Train: pip install 'teletensor[ray]'"
    ) from error

from .. import distributed as dist
from .._sessions.errors import RankLostError, TeletensorError
from .._sessions.session import Session, connect, current_session
from .._tensors.convert import tensor
from ..distributed._group import ProcessGroup, found
from ._ray_job import Job

__all__ = ["TeletensorConfig", "resumable"]

_PATIENCE = 30.0  # seconds to wait for the answer of a worker


@dataclass
class TeletensorConfig(BackendConfig):  # type: ignore[misc]
    """The configuration `DataParallelTrainer(..., backend_config=TeletensorConfig())`: the training
    function finds in each worker that `tt.distributed` is initialized, that torchrun's variables are set,
    and that a session of the worker is the current one.

    The sessions are on the daemon at `address`, or at TELETENSOR_ADDRESS of the worker's node. "unix:/path"
    means a separate daemon on each node; the daemons of several nodes must be connected to each other.
    Without an address a job on one node uses the user's running daemon. In all other cases the job starts a
    daemon on each of its nodes, with `daemon_flags` added to its command line; these daemons are connected
    by TLS. They end with the job or, if the job has failed, with the driver or its next job.

    `memory`: the bytes that each session requests on each device (0: the maximum that the daemon allows).
    `backend` and `timeout` (seconds) are those of `init_process_group`.

    The session of rank 1 is named "NAME-1", where NAME is `name`, or a random name that Ray's controller
    chooses for the job. A worker that Ray restarts takes over the session of its rank, with all tensors
    that it keeps (see `tt.kept_steps`). Jobs with the same `name` on one daemon take over each other's
    sessions.

    replace_workers: when a worker ends, Ray replaces only that worker instead of all workers. Ray counts
    each replaced worker as a failure, and gives it no shard of `datasets`. Intended for a training function
    that is `resumable`.
    """

    address: str | None = None
    memory: int = 0
    backend: str = "gloo"
    timeout: float = 1800.0
    name: str | None = None
    daemon_flags: Sequence[str] = ()
    replace_workers: bool = False

    @property
    def backend_cls(self) -> type:
        """The class of the backend in Ray's controller."""
        return _ReplacingBackend if self.replace_workers else _Backend

    @property
    def train_func_context(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Creates the context manager in which Ray runs the training function."""
        return functools.partial(_in_world, self.backend, self.timeout, self.memory)

    def to_dict(self) -> dict[str, Any]:
        """The fields, for Ray's own record of the job."""
        return {**vars(self), "daemon_flags": list(self.daemon_flags)}


class _Backend(Backend):  # type: ignore[misc]
    """The backend, which lives in the process of Ray's controller for the duration of the job."""

    def __init__(self) -> None:
        self._job: Job | None = None

    def on_start(self, worker_group: Any, backend_config: TeletensorConfig) -> None:
        if self._job is None:
            self._job = Job(backend_config.address, backend_config.name, backend_config.daemon_flags)
        self._job.start(worker_group)

    def on_shutdown(self, worker_group: Any, backend_config: TeletensorConfig) -> None:
        # Ray also calls this before it restarts workers, whose sessions must stay then.
        # a worker may have been killed or be stuck
        with contextlib.suppress(RayActorError, GetTimeoutError):
            done = ray.get(worker_group.execute_async(_is_done), timeout=_PATIENCE)
            if self._job is not None and all(done):
                self._job.end()


class _ReplacingBackend(_Backend):
    has_replica_groups = True


_done = False  # whether the training function of this worker has returned


def _is_done() -> bool:
    """Runs in a worker."""
    return _done


@contextlib.contextmanager
def _in_world(backend: str, timeout: float, memory: int) -> Iterator[None]:
    """A context around the training function, in a worker."""
    session = connect(name=f"{os.environ['TORCHELASTIC_RUN_ID']}-{os.environ['RANK']}", memory=memory)
    try:
        _forget_work(session)
        dist.init_process_group(backend, timeout=timeout)
        yield
        if dist.is_initialized():
            dist.barrier()  # a rank that is restarted could not use a session that is closed
            dist.destroy_process_group()
    except BaseException:
        _leave_world()
        with contextlib.suppress(TeletensorError):
            session.detach()  # the session stays for the worker that Ray starts in this one's place
        raise
    session.close()
    global _done
    _done = True


def _forget_work(session: Session) -> None:
    """Cancels the commands that an earlier client has queued, and discards the errors of those that have
    run."""
    session.cancel()
    with contextlib.suppress(Exception):
        tensor(0).item()  # the daemon reports earlier errors before its first answer
    session.clear_errors()


def _leave_world() -> None:
    with contextlib.suppress(TeletensorError, RuntimeError):
        if dist.is_initialized():
            dist.destroy_process_group()


def resumable(train_loop: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for a training function: if another rank is lost, the function starts again in the same
    worker, in a new world that waits for the worker that Ray starts in place of the lost one. Tensors that
    the function has kept (see `tt.kept_steps`) are still in the session. Other errors end the worker as
    usual."""

    @functools.wraps(train_loop)
    def loop(*arguments: Any) -> Any:
        while True:
            try:
                return train_loop(*arguments)
            except RankLostError:
                world = found(None)
            _begin_again(world)

    return loop


def _begin_again(world: ProcessGroup) -> None:
    session = current_session()
    _leave_world()
    _forget_work(session)
    dist.init_process_group(world.name(), timeout=world._timeout)
