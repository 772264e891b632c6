"""Kills clients and daemons at random moments, and checks that the remaining ones compute right results and
that every byte is released.

CHAOS_SECONDS (60) is the duration of a test; CHAOS_SEED (1) determines when, which process and how.
"""

import os
import random
import signal
import time

import pytest
from support.clients import client, finish, wait_line
from support.daemon import HANG, Daemon, wait_until
from support.raw import Raw

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))

# The program of a client: trains, uploads and downloads for ever, and reports a wrong value. Ctrl-C aborts a
# round.
WORK = """
host = np.arange(1 << 19, dtype=np.float32)
big = tt.tensor(host)
x = tt.linspace(-1, 1, 64).reshape(64, 1)
model = tt.nn.Sequential(tt.nn.Linear(1, 16), tt.nn.Tanh(), tt.nn.Linear(16, 1))
optimizer = tt.optim.Adam(model.parameters(), lr=0.01)
print("working", flush=True)
while True:
    try:
        for _ in range(50):
            optimizer.zero_grad()
            loss = ((model(x) - x * x) ** 2).mean()
            loss.backward()
            optimizer.step()
        if not loss.item() < 10: print("WRONG loss", loss.item(), flush=True)
        if (big + 1).numpy()[-1] != host[-1] + 1: print("WRONG download", flush=True)
        if tt.tensor(host).sum().item() != big.sum().item(): print("WRONG upload", flush=True)
        y = tt.ones(200, 200) @ tt.ones(200, 200)
        if y[7, 9].item() != 200: print("WRONG product", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except tt.SessionLostError:
        print("lost", flush=True)
        os._exit(7)
"""


def checked_end(process):
    """The output of a client that was ended by the test or has ended by itself; checks that it reports
    nothing wrong."""
    out, err = process.communicate(timeout=HANG)
    assert "WRONG" not in out, out
    return out, err


@pytest.mark.timeout(1800)
def test_clients_are_killed(start_daemon, tt):
    """Clients get SIGKILL, SIGSTOP for a while, or SIGINT; a session of the test itself is not affected."""
    print(f"seed {SEED}")
    daemon, choose = start_daemon("--host-memory", "512MiB", "--lease", "0"), random.Random(SEED)
    running, killed, interrupted = [], 0, 0
    with tt.connect(daemon.unix) as own:
        kept, steps = tt.arange(1000, dtype=tt.float64), 0
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            while len(running) < 4:
                running.append(client(WORK, daemon.unix))
                wait_line(running[-1], "working")
            victim = choose.choice(running)
            action = choose.choice(["kill", "kill", "interrupt", "stop"])
            if action == "interrupt":
                victim.send_signal(signal.SIGINT)
                interrupted += 1
            else:
                if action == "stop":
                    victim.send_signal(signal.SIGSTOP)
                    time.sleep(choose.random() / 4)
                victim.kill()
                checked_end(victim)
                running.remove(victim)
                killed += 1
            steps += 1
            kept = kept + 1
            assert kept.sum().item() == 1000 * 999 / 2 + 1000 * steps
            time.sleep(choose.random() / 5)
        for process in running:
            process.kill()
            checked_end(process)
        own.close()
    print(f"{killed} killed, {interrupted} interrupted")
    assert killed > 0
    with Raw(daemon.unix) as raw:
        wait_until(lambda: not any(raw.used().values()) and not raw.sessions(), what="all memory is back")


@pytest.mark.timeout(1800)
def test_daemons_are_killed():
    """Every client of a killed or stopped daemon ends with SessionLostError; the next daemon serves
    clients."""
    choose, rounds = random.Random(SEED), 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        daemon = Daemon()
        clients = [client(WORK, daemon.unix) for _ in range(3)]
        try:
            for process in clients:
                wait_line(process, "working")
            time.sleep(choose.random())
            if choose.random() < 0.7:
                daemon.process.kill()
            else:
                assert daemon.terminate() == 0
            for process in clients:
                status, out, err = finish(process)
                assert status == 7 and "lost" in out and "WRONG" not in out, (status, out, err)
        finally:
            daemon.kill()
            for process in clients:
                process.kill()
        rounds += 1
    print(f"{rounds} daemons")
    assert rounds > 0
