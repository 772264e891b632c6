"""Ranks and sizes that programs other than torchrun give to the processes of a world: mpirun and srun."""

import json
import sys

import pytest
from support.clients import client, finish

MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
          "PMIX_NAMESPACE": "3871932417"}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "5", "MPI_LOCALRANKID": "1"}
SRUN = {"SLURM_PROCID": "3", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "box", "MASTER_PORT": "29500"}


@pytest.fixture
def environment(monkeypatch):
    """environment(variables) sets only these variables and returns (rank, size, local rank, name of the
    world)."""
    from teletensor.distributed import _environment

    def found(variables):
        for name in {**MPIRUN, **MPICH, **SRUN, **TORCHRUN, "PMI_JOBID": ""}:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        names = "RANK", "WORLD_SIZE", "LOCAL_RANK"
        return (*map(_environment.variable, names), _environment.world_name())
    return found


@pytest.mark.parametrize("variables, wanted", [
    (MPIRUN, ("1", "4", "0", "3871932417")),
    (MPICH, ("2", "5", "1", "")),
    (SRUN, ("3", "6", "2", "17.0")),
    ({**SRUN, **MPIRUN}, ("1", "4", "0", "3871932417")),  # mpirun in a job of Slurm
    ({**SRUN, "MASTER_PORT": "1"}, ("3", "6", "2", ":1")),
    ({**SRUN, **TORCHRUN}, ("0", "2", "0", "box:29500")),  # torchrun in a job of Slurm
    ({**SRUN, "RANK": "1"}, ("1", None, None, ":")),
    ({"SLURM_NTASKS": "6"}, (None, None, None, ":")),  # sbatch, and no srun
    ({}, (None, None, None, ":")),
])
def test_who_says_which_rank_this_is(environment, variables, wanted):
    assert environment(variables) == wanted


def test_a_world_that_srun_starts(shared_daemon, monkeypatch):
    for name in {**MPIRUN, **MPICH, **TORCHRUN}:
        monkeypatch.delenv(name, raising=False)
    processes = []
    for rank in range(2):
        for name, value in {**SRUN, "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2"}.items():
            monkeypatch.setenv(name, value)
        processes.append(client("""
            import json
            tt.distributed.init_process_group()
            x = tt.ones(2) * (tt.distributed.get_rank() + 1)
            tt.distributed.all_reduce(x)
            print(json.dumps([tt.distributed.get_world_size(), x.tolist()]))
        """, shared_daemon.unix))
    for process in processes:
        status, out, err = finish(process)
        assert status == 0, err
        assert json.loads(out) == [2, [3.0, 3.0]]


def test_what_is_missing_is_named(tt, environment):
    environment({"RANK": "0"})
    with pytest.raises(ValueError, match="environment variable WORLD_SIZE"):
        tt.distributed.init_process_group()
    assert not tt.distributed.is_initialized()


def test_adapters_to_libraries_that_are_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "teletensor.integrations.ray", raising=False)
    with pytest.raises(ImportError, match=r"needs Ray Train: pip install 'teletensor\[ray\]'"):
        import teletensor.integrations.ray  # noqa: F401
