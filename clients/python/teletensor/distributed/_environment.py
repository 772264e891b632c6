"""The rank of this process in the world, as given by the environment variables of the program that started
it: torchrun, mpirun or srun."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["variable", "world_name"]


class _Starter(NamedTuple):
    """A program that starts processes, identified by the variables that it sets."""

    rank: str
    size: str
    local_rank: str
    job: tuple[str, ...]  # variables that together identify the job


# mpirun comes first, because a Slurm job may have started it.
_STARTERS = (
    _Starter("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             ("PMIX_NAMESPACE",)),
    _Starter("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ("PMI_JOBID",)),  # MPICH
    _Starter("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)


def _starter() -> _Starter | None:
    """The first program that has set rank and size. None if RANK or WORLD_SIZE is set, because then only
    these are used, and if no variable is set."""
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        return None
    return next((each for each in _STARTERS if each.rank in os.environ and each.size in os.environ), None)


def variable(name: str) -> str | None:
    """The value of RANK, WORLD_SIZE or LOCAL_RANK, or of the corresponding variable of mpirun or srun."""
    starter = _starter()
    if starter is not None:
        name = {"RANK": starter.rank, "WORLD_SIZE": starter.size, "LOCAL_RANK": starter.local_rank}[name]
    return os.environ.get(name)


def world_name() -> str:
    """The name that identifies the world among the user's worlds: MASTER_ADDR and MASTER_PORT, or, if these
    are not set, the job of mpirun or srun."""
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    starter = _starter()
    if starter is not None and not (address or port):
        return ".".join(os.environ[each] for each in starter.job if each in os.environ)
    return f"{address}:{port}"
