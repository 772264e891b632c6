"""Training steps whose state stays in the session, with programs that are killed between and within them."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest
from support.daemon import HANG

# A program that ends itself by SIGKILL at the given Python call of the loop.
PROGRAM = """
import json, os, sys
import teletensor as tt
steps, last = int(sys.argv[1]), int(sys.argv[2])
session = tt.connect(os.environ["TT_TEST_ADDRESS"], name="training")
tt.manual_seed(3)
net = tt.nn.Sequential(tt.nn.Linear(6, 20), tt.nn.Dropout(0.3), tt.nn.Linear(20, 3))
optimizer = tt.optim.Adam(net.parameters(), lr=0.01)
rates = tt.optim.lr_scheduler.StepLR(optimizer, 4)
calls = 0
def count(frame, event, argument):
    global calls
    calls += 1
    if calls == last:
        os.kill(os.getpid(), 9)
sys.setprofile(count)
done = []
for step in tt.kept_steps(steps, net=net, optimizer=optimizer, rates=rates):
    done.append(step)
    optimizer.zero_grad()
    (net((tt.arange(48.0).reshape(8, 6) + step).sin()) - 1).square().mean().backward()
    optimizer.step()
    rates.step()
sys.setprofile(None)
weights = [p.detach().numpy().tobytes().hex() for p in net.parameters()]
print(json.dumps({"calls": calls, "done": done, "state": [rates.get_last_lr(), weights]}), flush=True)
session.close()
"""


def run(address, steps, last=0):
    """The values that the program has printed; None if it was killed at the call `last` of its loop."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(steps), str(last)], capture_output=True, text=True,
                          env={**os.environ, "TT_TEST_ADDRESS": address}, timeout=HANG)
    assert done.returncode == (-signal.SIGKILL if last else 0), done.stderr
    return None if last else json.loads(done.stdout)


def test_programs_that_are_killed_go_on(start_daemon):
    """The program is killed at random calls of the loop: the weights are the same as without kills."""
    daemon, steps, seed = start_daemon(), 20, random.randrange(1 << 30)
    print("seed", seed)
    dice, whole = random.Random(seed), run(daemon.unix, steps)
    assert whole["done"] == list(range(steps))
    for _ in range(4):
        run(daemon.unix, steps, dice.randrange(1, whole["calls"] // 4))
    rest = run(daemon.unix, steps)
    assert rest["state"] == whole["state"]
    assert rest["done"] == list(range(rest["done"][0], steps))


@pytest.fixture
def taken(start_daemon, tt):
    """taken(): a further client of the session "n"."""
    daemon, sessions = start_daemon(), []

    def take():
        sessions.append(tt.connect(daemon.unix, name="n", fresh=True))
        return sessions[-1]
    yield take
    sessions[-1].close()


class Counter:
    """An object whose state_dict has one tensor and the other kinds of values that a state_dict may
    contain."""

    def __init__(self, tt):
        self.value, self.rest = tt.zeros(2), None

    def state_dict(self):
        return {"value": self.value, "rest": [1, 2.5, "x", None, True, (3, {4: "four"})], 7: [self.value + 1]}

    def load_state_dict(self, state):
        self.value, self.rest = state["value"], state


def test_state_of_every_kind_comes_back(taken, tt):
    with taken().as_current():
        counter = Counter(tt)
        steps = tt.kept_steps(5, counter=counter)
        for step in steps:
            counter.value = counter.value + step
            if step == 3:
                break  # in the middle of step 3: it has not been kept
    with taken().as_current():
        counter = Counter(tt)
        steps = tt.kept_steps(5, counter=counter)
        assert next(steps) == 3
        assert counter.rest["rest"] == [1, 2.5, "x", None, True, (3, {4: "four"})]
        assert counter.value.tolist() == [3.0, 3.0] and counter.rest[7][0].tolist() == [4.0, 4.0]
        assert list(steps) == [4]
        assert list(tt.kept_steps(5, counter=counter)) == []


def test_every_other_step_is_kept(taken, tt):
    with taken().as_current():
        for step in tt.kept_steps(7, every=3, counter=Counter(tt)):
            if step == 5:
                break
    with taken().as_current():
        assert list(tt.kept_steps(7, every=3, counter=Counter(tt))) == [3, 4, 5, 6]
        assert list(tt.kept_steps(7, every=3, counter=Counter(tt))) == []


def test_a_step_that_fails_is_not_kept(taken, tt):
    with taken().as_current():
        counter, steps = Counter(tt), []
        with pytest.raises(IndexError):
            for step in tt.kept_steps(4, counter=counter):
                steps.append(step)
                counter.value = counter.value + 1
                if step == 2:
                    counter.value = counter.value[tt.tensor([0, 9])]
        assert steps == [0, 1, 2]
    with taken().as_current():
        counter = Counter(tt)
        assert next(tt.kept_steps(4, counter=counter)) == 2
        assert counter.value.tolist() == [2.0, 2.0]


def test_bad_input(taken, tt):
    with taken().as_current():
        with pytest.raises(ValueError, match="every must be 1 or more, not 0"):
            next(tt.kept_steps(3, every=0))
        counter = Counter(tt)
        counter.state_dict = lambda: {"value": {1, 2}}
        with pytest.raises(TypeError, match=r"state_dict\(\) holds tensors, numbers, .* not set"):
            next(tt.kept_steps(3, counter=counter))

