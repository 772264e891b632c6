"""Kills the daemon with kill -9 a hundred times under training clients, and runs a thousand random
histories.

CHAOS_CRASHES (100), CHAOS_HISTORIES (1000), CHAOS_SEED (1).
"""

import os
import random
import re
import textwrap
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from support.clients import client, wait_line
from support.daemon import Daemon
from support.histories import DONE, machine

CRASHES = int(os.environ.get("CHAOS_CRASHES", "100"))
HISTORIES = int(os.environ.get("CHAOS_HISTORIES", "1000"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
PARTS = 8

# Trains for ever: each round starts from the same state, so all rounds have the same bits. A client that is
# rolled back checks the restored tensors, accepts the rollback, and starts its round again.
WORK = """
def whole(rounds):
    tt.manual_seed(3)
    x = tt.tensor(np.linspace(-1, 1, 256, dtype=np.float32).reshape(64, 4))
    net = tt.nn.Sequential(tt.nn.Linear(4, 16), tt.nn.Tanh(), tt.nn.Dropout(0.1), tt.nn.Linear(16, 2))
    opt = tt.optim.Adam(net.parameters(), lr=0.01)
    for i in range(rounds):
        opt.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        opt.step()
        if i % 10 == 0: loss.item()
    return np.concatenate([p.detach().numpy().reshape(-1) for p in net.parameters()])
wanted = whole(60)
mark = tt.tensor([5.0, 6.0])
s.keep("mark", mark)
s.snapshot()
print("working", flush=True)
rounds = 0
while not os.path.exists(os.environ["TT_TEST_END"]):
    try:
        if not (whole(60) == wanted).all(): print("WRONG weights", flush=True)
        rounds += 1
        if rounds % 5 == 0: s.snapshot()
    except tt.SessionLostError as lost:
        have, known = s.rolled_back or (0, 0)
        if not 0 < have < known: print("WRONG", lost, flush=True)
        s.accept_rollback()
        if s.kept()["mark"].tolist() != [5.0, 6.0]: print("WRONG mark", flush=True)
        print("rolled back", flush=True)
print("rounds", rounds, flush=True)
"""


@pytest.mark.timeout(7200)
def test_the_daemon_is_killed_a_hundred_times(tmp_path, monkeypatch):
    print(f"seed {SEED}")
    choose, end = random.Random(SEED), tmp_path / "end"
    monkeypatch.setenv("TT_TEST_END", str(end))
    daemon = Daemon("--lease", "600", "--restart", "120", "--snapshot-every", "0.5")
    clients = [client(textwrap.dedent(WORK), daemon.unix) for _ in range(3)]
    slowest = 0.0
    try:
        for process in clients:  # each has a snapshot
            wait_line(process, "working", 600)
        for _ in range(CRASHES):
            time.sleep(choose.random() * 1.5)
            daemon.kill()
            begin = time.monotonic()
            daemon.restart()
            slowest = max(slowest, time.monotonic() - begin)
            assert "event=session_not_restored" not in daemon.log, daemon.log
        end.touch()
        rounds = back = 0
        for process in clients:
            out, err = process.communicate(timeout=600)
            assert process.returncode == 0 and "WRONG" not in out, (out, err)
            rounds += int(re.search(r"rounds (\d+)", out).group(1))
            back += out.count("rolled back")
        assert daemon.stop() == ""
    finally:
        daemon.kill()
        for process in clients:
            process.kill()
    print(f"{CRASHES} crashes, started every time, in {slowest:.2f} s at most; {rounds} trainings right, "
          f"{back} rollbacks accepted")
    assert rounds > 0 and np.isfinite(slowest)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_thousand_histories(part):
    """Divided into parts, so that several workers can run them."""
    with machine() as histories:
        run = settings(max_examples=HISTORIES // PARTS, stateful_step_count=40, deadline=None, database=None,
                       phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        run_state_machine_as_test(seed(SEED * PARTS + part)(histories), settings=run)
    assert DONE["histories"] >= HISTORIES // PARTS * 9 // 10, DONE
    assert DONE["histories with moved sessions"] >= DONE["histories"] // 4, DONE
