"""Runs PyTorch's own tests of torch.distributed with gloo and with a daemon's groups.

  .venv-peers/bin/python tests/peers/torch_distributed.py [--ranks 3] [--json FILE] [NAME ...]

The suite is in PyTorch's wheel: torch.testing._internal.distributed.distributed_test. Its conditions depend
on the names of the backends, so it is told that it runs gloo; in the processes of "teletensor" the name
"gloo" stands for the backend of teletensor.integrations.torch_backend, and a process that does not create a
group of that backend fails. The processes of a world run one test after the other, each in a separate
process group; a failed test ends them.
"""

import argparse
import faulthandler
import importlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

PATIENCE = 150  # seconds; the timeouts in the suite are at most 60, except for one of 300
_fork = multiprocessing.get_context("fork")


def suite(ranks, folder):
    """The class of the suite, constructed for gloo and that number of ranks, with its files in the
    folder."""
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir()
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(ranks), TEMP_DIR=str(folder), MASTER_ADDR="127.0.0.1",
                      INIT_METHOD=f"file://{folder}/init_dir/shared_init_file")
    from torch.testing._internal.distributed import distributed_test

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    return Suite


def names_of(tests):
    return [name for name in dir(tests) if name.startswith("test_")]


def _skip_of(tests, name):
    method = getattr(tests, name)
    return method.__unittest_skip_why__ if getattr(method, "__unittest_skip__", False) else None


def _one(tests, name, rank, folder, made):
    """("passed" | "skipped" | "failed", why)"""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.common_utils import set_rng_seed
    from torch.testing._internal.distributed.distributed_test import CUSTOM_PG_TIMEOUT, Barrier

    Barrier.barrier_id = 0
    test = tests(name)
    test.rank, test.file_name = rank, str(folder / "world")
    test.skip_return_code_checks = []
    before, kept = made(), dict(os.environ)
    try:
        dist.init_process_group("gloo", init_method=f"file://{test.file_name}", world_size=int(test.world_size),
                                rank=rank, timeout=timedelta(seconds=CUSTOM_PG_TIMEOUT.get(name, 60)))
        assert made() > before, "the group is not of the backend that is tested"
        test._barrier(timeout=60)
        set_rng_seed()
        getattr(test, name)()
        test._barrier(timeout=60)
        dist.destroy_process_group()
    except unittest.SkipTest as skipped:
        test._barrier(timeout=60)
        dist.destroy_process_group()
        return "skipped", str(skipped)
    except SystemExit as left:
        known = [skip.message for skip in TEST_SKIPS.values() if skip.exit_code == left.code]
        test._barrier(timeout=60)
        dist.destroy_process_group()
        return ("skipped", known[0]) if known else ("failed", f"exit status {left.code}")
    except BaseException:
        return "failed", traceback.format_exc()
    finally:
        os.environ.clear()
        os.environ.update(kept)
        torch.set_default_dtype(torch.float32)
    return "passed", ""


def _rank(tests, rank, folder, address, pipe, output):
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    if address is None:
        def made():
            made.count += 1  # gloo does not create a group of this backend
            return made.count
        made.count = 0
    else:
        os.environ["TELETENSOR_ADDRESS"] = address
        from teletensor.integrations import torch_backend
        backends = torch.distributed.Backend._plugins
        count = [0]

        class Group(torch_backend.TeletensorProcessGroup):
            def name(self):
                return "gloo"

        def create(options, _):
            count[0] += 1
            return Group(options)

        backends["GLOO"] = backends["TELETENSOR"]._replace(creator_fn=create)

        def made():
            return count[0]
    while (name := pipe.recv()) is not None:
        pipe.send(_one(tests, name, rank, folder, made))


class World:
    """Processes that run tests. `address` is that of a daemon for all of them, or None for gloo."""

    def __init__(self, tests, ranks, folder, address):
        self.tests, self.ranks, self.folder, self.address = tests, ranks, folder, address
        self.processes = []

    def _start(self):
        self.processes = []
        for rank in range(self.ranks):
            ours, theirs = _fork.Pipe()
            process = _fork.Process(target=_rank, daemon=True, args=(
                self.tests, rank, self.folder, self.address, theirs, self.folder / f"output{rank}"))
            process.start()
            theirs.close()
            self.processes.append((process, ours))

    def run(self, name):
        """("passed" | "skipped" | "failed", why)"""
        if (why := _skip_of(self.tests, name)) is not None:
            return "skipped", why
        for part in ("barrier", "test_dir", "init_dir"):
            for path in (self.folder / part).iterdir():
                path.unlink()
        (self.folder / "world").unlink(missing_ok=True)
        if not self.processes:
            self._start()
        for _, pipe in self.processes:
            pipe.send(name)
        found, until = [], time.monotonic() + PATIENCE
        for rank, (process, pipe) in enumerate(self.processes):
            try:
                if pipe.poll(max(until - time.monotonic(), 0)):
                    found.append(pipe.recv())
                else:
                    found.append(("failed", f"has not ended in {PATIENCE} s"))
            except EOFError:
                process.join(10)
                said = (self.folder / f"output{rank}").read_text(errors="replace")[-4000:]
                found.append(("failed", f"the process has ended: {process.exitcode}\n{said}"))
        result = sorted(found, key=lambda each: ("failed", "skipped", "passed").index(each[0]))[0]
        if result[0] == "failed":
            why = "\n".join(f"rank {rank}: {text}" for rank, (state, text) in enumerate(found) if state == "failed")
            result = "failed", why
            self.kill()
        return result

    def close(self):
        for process, pipe in self.processes:
            pipe.send(None)
            process.join(30)
        self.kill()

    def kill(self):
        for process, pipe in self.processes:
            process.kill()
            process.join()
            pipe.close()
        self.processes = []


def run(names, ranks, address):
    """{name: (state, why)}. address is that of a daemon, or None for gloo. `names` None means all tests."""
    folder = Path(tempfile.mkdtemp(prefix="tt-"))
    world = None
    try:
        tests = suite(ranks, folder)
        if address is not None:
            # imported once, for the processes that are forked later
            importlib.import_module("teletensor.integrations.torch_backend")
        world = World(tests, ranks, folder, address)
        found = {}
        for name in names or names_of(tests):
            began = time.monotonic()
            found[name] = world.run(name)
            if __name__ == "__main__":
                print(f"{'gloo' if address is None else 'teletensor':10} {found[name][0]:8}"
                      f"{time.monotonic() - began:6.1f} s {name}", flush=True)
        return found
    finally:
        if world is not None:
            world.close()
        shutil.rmtree(folder, ignore_errors=True)


def last(text):
    """The line that describes the failure."""
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "To exec", "This message"))]
    return next((line for line in lines if "Error" in line), lines[-1] if lines else "")[:300]


def forked(names, ranks, address):
    """As run(), in a separate process, because the suite reads its variables only once."""
    receive, send = _fork.Pipe(duplex=False)
    process = _fork.Process(target=lambda: send.send(run(names, ranks, address)))
    process.start()
    send.close()
    found = receive.recv()
    process.join()
    return found


def with_a_daemon(names, ranks):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from support.daemon import Daemon

    daemon = Daemon("--max-sessions", "200", "--user-sessions", "0")
    try:
        return forked(names, ranks, daemon.unix)
    finally:
        if bad := daemon.stop():
            sys.exit(bad)


def compare(gloo, ours):
    """Prints the differences and the counts."""
    for name, (state, why) in ours.items():
        if state != gloo[name][0]:
            print(f"{name}: gloo {gloo[name][0]}, teletensor {state}: {last(why)}")
    for backend, found in (("gloo", gloo), ("teletensor", ours)):
        states = [state for state, _ in found.values()]
        print(backend, {state: states.count(state) for state in ("passed", "failed", "skipped")})
    passed = [name for name in ours if gloo[name][0] == "passed"]
    good = sum(ours[name][0] == "passed" for name in passed)
    print(f"of {len(passed)} that pass with gloo, {good} pass with teletensor")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for all results")
    parser.add_argument("--address", help="of a daemon: only the tests over it are run")
    parser.add_argument("names", nargs="*", help="of tests; none: all")
    given = parser.parse_args()
    if given.address:
        results = {"teletensor": forked(given.names, given.ranks, given.address)}
    else:
        results = {"gloo": forked(given.names, given.ranks, None),
                   "teletensor": with_a_daemon(given.names, given.ranks)}
        compare(results["gloo"], results["teletensor"])
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
