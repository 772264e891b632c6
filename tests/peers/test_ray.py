"""Tests Ray Train jobs in `tt.distributed` worlds, with a worker that is killed; Ray Data and Ray Tune.
Uses two Ray nodes on this machine, and leaves none of their processes behind."""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import numpy as np
import pytest
from support.daemon import ROOT, binary, wait_until
from support.snippets import snippets

ray = pytest.importorskip("ray")
tune = pytest.importorskip("ray.tune")
pytestmark = pytest.mark.timeout(600)

STEPS, KILLED_AT = 8, 5
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_AUTH_MODE": "disabled",
    "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0", "TELETENSORD": binary(),
}


def marked(mark):
    """The processes whose environment contains the mark, except zombies."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path("/proc", pid, "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment and int(pid) != os.getpid():
            found.append(int(pid))
    return found


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with 4 CPUs and 1 CPU, for all tests. Their processes do not find this user's daemon."""
    from ray.cluster_utils import Cluster

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    mark, change = str(uuid.uuid4()), pytest.MonkeyPatch()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with tempfile.TemporaryDirectory(prefix="ttr-") as folder:
        for name in [name for name in os.environ if name.startswith("TELETENSOR_")]:
            change.delenv(name)
        for name, value in {**SETTINGS, "TT_RAY": mark, "XDG_RUNTIME_DIR": folder}.items():
            change.setenv(name, value)
        small = {"object_store_memory": 80 << 20, "include_dashboard": False}
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, **small})
        try:
            nodes.add_node(num_cpus=1, object_store_memory=80 << 20)
            ray.init(address=nodes.address, log_to_driver=False)
            yield
        finally:
            ray.shutdown()
            nodes.shutdown()
            change.undo()
            for number, handler in handlers.items():  # Ray has replaced them
                signal.signal(number, handler)
        wait_until(lambda: not marked(mark), what="all processes of Ray's end")


def train(config):
    """Trains; returns what this worker has recorded. Rank 1 is killed once, in the middle of a step."""
    import teletensor as tt

    dist, rank = tt.distributed, int(os.environ["RANK"])
    Path(config["folder"], f"{rank}-{os.getpid()}-{uuid.uuid4()}").touch()
    tt.manual_seed(rank)
    net = tt.nn.Sequential(tt.nn.Linear(6, 20), tt.nn.Dropout(0.2), tt.nn.ReLU(), tt.nn.Linear(20, 3))
    net = tt.nn.parallel.DistributedDataParallel(net)
    optimizer = tt.optim.Adam(net.parameters(), lr=0.01)
    rates = tt.optim.lr_scheduler.StepLR(optimizer, 3)
    steps = []
    for step in tt.kept_steps(STEPS, net=net, optimizer=optimizer, rates=rates):
        steps.append(step)
        optimizer.zero_grad()
        data = (tt.arange(48.0).reshape(8, 6) + step).sin() * (rank + 1)
        (net(data) - 1).square().mean().backward()
        if (rank, step) == (1, KILLED_AT) and config["kill"] and not os.path.exists(config["folder"] + "/killed"):
            Path(config["folder"], "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        rates.step()
    total = tt.tensor([float(rank + 1)])
    dist.all_reduce(total)
    return {"weights": [p.detach().numpy().tobytes().hex() for p in net.parameters()], "steps": steps,
            "sum": total.item(), "environment": dict(os.environ), "session": tt.current_session().name}


def run(folder, loop, kill=False, failures=0, spread=False, datasets=None, **config):
    """Returns the value that rank 0's training function returns."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    from teletensor.integrations.ray import TeletensorConfig

    trainer = DataParallelTrainer(
        loop, train_loop_config={"folder": str(folder), "kill": kill}, backend_config=TeletensorConfig(**config),
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD" if spread else "STRICT_PACK"),
        run_config=RunConfig(storage_path=str(folder), failure_config=FailureConfig(max_failures=failures)),
        datasets=datasets)
    return trainer.fit().return_value


def started(folder):
    """(rank, process) for each call of the training function."""
    return sorted(tuple(map(int, path.name.split("-")[:2])) for path in folder.glob("[01]-*"))


def check(found, undisturbed):
    """The weights must be the same. The worker that was killed may not have sent all commands that keep its
    last step."""
    assert found["weights"] == undisturbed["weights"]
    assert found["steps"] in (list(range(KILLED_AT, STEPS)), list(range(KILLED_AT - 1, STEPS)))


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    return run(tmp_path_factory.mktemp("undisturbed"), train)


def test_a_job_has_a_world(undisturbed):
    assert undisturbed["sum"] == 3.0 and undisturbed["steps"] == list(range(STEPS))
    environment = undisturbed["environment"]
    wanted = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
              "NODE_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    assert {name: environment[name] for name in wanted} == wanted
    assert environment["MASTER_ADDR"] and int(environment["MASTER_PORT"]) > 0
    assert undisturbed["session"] == environment["TORCHELASTIC_RUN_ID"] + "-0"
    # The job had a daemon of its own, which must have ended with it.
    socket = environment["TELETENSOR_ADDRESS"].removeprefix("unix:")
    wait_until(lambda: not os.path.exists(socket), what="the job's daemon has ended")


def test_all_workers_begin_again_when_one_is_killed(undisturbed, tmp_path):
    found = run(tmp_path, train, kill=True, failures=1)
    check(found, undisturbed)
    ranks = [rank for rank, _ in started(tmp_path)]
    assert ranks == [0, 0, 1, 1] and len(set(started(tmp_path))) == 4


def test_one_worker_is_replaced_alone(undisturbed, tmp_path):
    """On two nodes, each with a daemon for the job, which are connected to each other."""
    from teletensor.integrations.ray import resumable

    found = run(tmp_path, resumable(train), kill=True, failures=1, spread=True, replace_workers=True)
    check(found, undisturbed)
    assert found["environment"]["GROUP_WORLD_SIZE"] == "2" and found["environment"]["LOCAL_WORLD_SIZE"] == "1"
    zero, zero_again, one, one_again = started(tmp_path)
    assert zero == zero_again and one[0] == one_again[0] == 1 and one != one_again


def test_the_program_of_the_page(cluster, tmp_path):
    (program,) = (s.code for s in snippets(ROOT / "docs/distributed.md") if s.title == "ray_train.py")
    names = {"__name__": "ray_train"}
    exec(program, names)
    weight = np.array(run(tmp_path, names["train"]))
    assert weight.shape == (2, 4) and np.isfinite(weight).all()


def fed(config):
    """Converts the batches of Ray Data to tensors."""
    import teletensor as tt

    total, rows = tt.zeros(2), 0
    for batch in ray.train.get_dataset_shard("train").iter_batches(batch_size=16, batch_format="numpy"):
        x = tt.from_numpy(batch["data"])
        total, rows = total + x.sum(0), rows + len(x)
    every = [None] * 2
    tt.distributed.all_gather_object(every, rows)
    tt.distributed.all_reduce(total)
    return {"total": total.tolist(), "rows": every}


def test_ray_data_feeds_the_workers(cluster, tmp_path):
    data = np.arange(200, dtype=np.float32).reshape(100, 2)
    found = run(tmp_path, fed, datasets={"train": ray.data.from_numpy(data)})
    assert found["total"] == data.sum(0).tolist()
    assert sum(found["rows"]) == 100 and min(found["rows"]) > 0


def test_trials_of_ray_tune_are_sessions_with_quotas(cluster, start_daemon, tmp_path):
    """Only the trial that exceeds its quota fails."""
    daemon = start_daemon()

    def trial(config):
        import teletensor as tt

        with tt.connect(config["address"], memory=8 << 20) as session:
            x = tt.ones(config["size"]) * config["factor"]
            tune.report({"mean": x.mean().item(), "quota": session.memory()[0]["quota"]})

    space = {"address": daemon.unix, "size": tune.grid_search([1_000, 10_000_000]),
             "factor": tune.grid_search([2.0, 3.0])}
    results = tune.Tuner(
        trial, param_space=space, tune_config=tune.TuneConfig(max_concurrent_trials=2),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0)).fit()
    assert len(results) == 4
    for result in results:
        if result.config["size"] == 1_000:
            assert result.error is None and result.metrics["mean"] == result.config["factor"]
            assert result.metrics["quota"] == 8 << 20
        else:
            assert "OutOfMemoryError" in str(result.error)


def test_a_job_whose_daemon_does_not_start_says_why(cluster, tmp_path):
    with pytest.raises(Exception, match="did not start") as caught:
        run(tmp_path, train, daemon_flags=("--no-such-flag",))
    assert "teletensord" in str(caught.value)


def test_without_ray_the_import_says_what_to_install():
    code = "import sys; sys.modules['ray'] = None; import teletensor.integrations.ray"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "ImportError: teletensor.integrations.ray needs Ray Train: pip install 'teletensor[ray]'" in done.stderr
