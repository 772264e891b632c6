"""Captured programs on a GPU are given to the driver as graphs, over the fake driver
(tests/support/fake_cuda). Its graphs run late, with the values at their launch, and it refuses graphs that a
real driver refuses."""

import re
import threading

import numpy as np
import pytest
from support.cuda import Control, fake
from support.daemon import wait_until
from support.http import scrape

STEPS = 25


@pytest.fixture
def start(start_daemon):
    """start(*flags, **options of the fake driver): a daemon whose device's tasks take 5 us each."""

    def started(*flags, **options):
        arguments, environment = fake(*flags, **{"pace": 5} | options)
        return start_daemon(*arguments, env=environment)
    return started


def did(daemon):
    """(launches, graphs) of cuda:0 so far."""
    text = scrape(daemon)
    return tuple(float(re.search(rf'^teletensor_device_{what}_total{{device="cuda:0"}} (\S+)$', text, re.M)[1])
                 for what in ("launches", "graphs"))


def body(tt, x, w, scale):
    """Products, sums over rows, and views between them, which no single loop can fuse. The numbers are
    whole, so the order of sums does not matter."""
    for k in range(STEPS):
        y = x @ w
        x = (y - y.sum(1, keepdim=True) * scale).clamp(-8, 8).cumsum(0).flip(0).clamp(-9, 9)
        x[k % 4] += k
    return x


def numbers(seed, *shape):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype("float32")


@pytest.mark.parametrize("options", [{}, {"graphs": "fixed"}, {"graphs": "none"}, {"blas": "none"}, {"seed": 7}])
def test_a_captured_program_is_graphs(start, options):
    """Inputs and a number change, and results are kept or dropped: the bits are the CPU's, with few
    launches."""
    import teletensor as tt

    daemon = start(**options)
    with tt.connect(daemon.unix):
        program = tt.compile(lambda x, w, scale: body(tt, x, w, scale))
        kept, asked = [], []

        def call():
            i = len(asked)
            x, w, scale = numbers(i, 4, 6), numbers(100 + i % 3, 6, 6), float(i % 5)
            before = did(daemon)
            found = program(tt.tensor(x, device="cuda"), tt.tensor(w, device="cuda"), scale)
            wanted = program(tt.tensor(x), tt.tensor(w), scale).numpy()
            np.testing.assert_array_equal(found.numpy(), wanted)
            if i % 3 == 0:
                kept.append((found, wanted))
            asked.append([now - then for now, then in zip(did(daemon), before, strict=True)])
            return asked[-1]

        for _ in range(8):
            call()
        if options.get("graphs") == "none":
            assert all(graphs == 0 for _, graphs in asked)
        else:  # its loops are compiled, and each call is the same
            wait_until(lambda: call()[0] < asked[0][0] / 4 and asked[-1][1] >= 3, what="graphs alone")
        for found, wanted in kept:
            np.testing.assert_array_equal(found.numpy(), wanted)


def test_training_steps_have_the_same_bits(start):
    """Adam's numbers change with each step, dropout's with each call."""
    import teletensor as tt

    def losses(daemon, device):
        with tt.connect(daemon.unix):
            tt.manual_seed(3)
            model = tt.nn.Sequential(tt.nn.Linear(6, 16), tt.nn.ReLU(), tt.nn.Dropout(0.25), tt.nn.Linear(16, 1))
            model.to(device)
            optimizer = tt.optim.Adam(model.parameters(), lr=0.01)
            x = tt.tensor(numbers(0, 32, 6), device=device)

            @tt.compile
            def step(x):
                optimizer.zero_grad()
                loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
                loss.backward()
                optimizer.step()
                return loss.detach()
            return [step(x).item() for _ in range(16)]

    wanted = losses(start(graphs="none"), "cuda")
    daemon = start()
    assert losses(daemon, "cuda") == wanted and wanted[-1] < wanted[0]
    assert did(daemon)[1] >= 4


def test_eager_code_is_not_gathered(start):
    import teletensor as tt

    daemon = start()
    with tt.connect(daemon.unix):
        for _ in range(6):
            x = body(tt, tt.tensor(numbers(0, 4, 6), device="cuda"), tt.tensor(numbers(1, 6, 6), device="cuda"), 2.0)
            x.numpy()
    assert did(daemon)[1] == 0


def test_errors_of_the_data_are_told_and_change_nothing(start):
    import teletensor as tt

    daemon = start()
    with tt.connect(daemon.unix):
        @tt.compile
        def program(x, places):
            for _ in range(8):
                x = (x.cumsum(0).flip(0) * 0.5).clamp(-9, 9)
            return body(tt, x.index_select(0, places), tt.eye(6, device="cuda"), 0.0)

        x = tt.tensor(numbers(0, 4, 6), device="cuda")
        good = [tt.tensor([3, 0, 1, 2], device="cuda").flip(0) for _ in range(6)]
        wanted = [program(x, places).tolist() for places in good]
        assert all(each == wanted[0] for each in wanted)
        wait_until(lambda: program(x, good[0]).tolist() == wanted[0] and did(daemon)[1] > 0, what="graphs")
        for _ in range(3):
            with pytest.raises(IndexError, match="index 9 is out of range for size 4"):
                program(x, tt.tensor([0, 9, 1, 1], device="cuda").flip(0)).tolist()
            assert program(x, good[0]).tolist() == wanted[0]


def test_no_room_is_told(start):
    import teletensor as tt

    daemon = start("--device-memory", "8MiB", memory=64)
    with tt.connect(daemon.unix):
        @tt.compile
        def program(x):
            for _ in range(6):
                x = x.cumsum(0).flip(0).clamp(-1, 1)
            return x.reshape(-1, 1).expand(-1, 64).contiguous().flip(0)

        small, large = tt.ones(1 << 10, device="cuda"), tt.ones(1 << 16, device="cuda")
        for _ in range(5):
            assert program(small).sum().item() == 64 << 10
            with pytest.raises(tt.OutOfMemoryError, match="on cuda:0: requested 16.0 MiB"):
                program(large).sum().item()
        assert did(daemon)[1] > 0


@pytest.mark.parametrize(("what", "patience", "cause"), [
    ("sticky 0", 60, "CUDA_ERROR_ILLEGAL_ADDRESS"), ("lost 0", 60, "CUDA_ERROR_UNKNOWN"),
    ("hang 0", 5, "it has made no progress for 5 seconds")])
def test_a_device_that_is_lost_is_told(start, tmp_path, what, patience, cause):
    import teletensor as tt

    control = Control(tmp_path)
    daemon = start("--device-patience", str(patience), control=control.path)
    with tt.connect(daemon.unix):
        program = tt.compile(lambda x, w: body(tt, x, w, 1.0))
        x, w = tt.tensor(numbers(0, 4, 6), device="cuda"), tt.tensor(numbers(1, 6, 6), device="cuda")
        on_host = tt.ones(3)
        wait_until(lambda: program(x, w).numpy() is not None and did(daemon)[1] > 0, what="graphs")
        control(what)
        with pytest.raises(tt.DeviceLostError, match=cause):
            for _ in range(20):
                program(x, w).numpy()
        assert on_host.tolist() == [1.0, 1.0, 1.0]


def test_sessions_beside_each_other(start):
    """Memory passes from one session to the other while both have collected tasks."""
    import teletensor as tt

    daemon = start("--device-memory", "2MiB", memory=64)
    sessions, wrong = [tt.connect(daemon.unix) for _ in range(3)], []

    def work(k, program, rounds):
        try:
            with sessions[k].as_current():
                for i in range(rounds):
                    x, w = numbers(50 * k + i, 4 + i % 3, 6), numbers(k, 6, 6)
                    found = program(tt.tensor(x, device="cuda"), tt.tensor(w, device="cuda")).numpy()
                    np.testing.assert_array_equal(found, program(tt.tensor(x), tt.tensor(w)).numpy())
        except BaseException as error:
            wrong.append(error)

    programs = [tt.compile(lambda x, w: body(tt, x, w, 1.0)) for _ in sessions]
    for k, program in enumerate(programs):
        work(k, program, 3)  # captured, which one thread does at a time
    threads = [threading.Thread(target=work, args=(k, program, 24)) for k, program in enumerate(programs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    assert did(daemon)[1] > 0
    for session in sessions:
        session.close()


def test_a_program_is_interrupted_between_its_graphs(start):
    import teletensor as tt

    daemon = start()
    with tt.connect(daemon.unix, name="mine").as_current() as session:
        @tt.compile
        def program(x):
            for _ in range(100):
                x = x.cumsum(0).flip(0).clamp(-1, 1)
            return x

        x = tt.ones(64, device="cuda")
        wait_until(lambda: program(x).numpy() is not None and did(daemon)[1] > 4, what="graphs")
        before = did(daemon)
        program(x).numpy()
        launches = did(daemon)[0] - before[0]
        before = did(daemon)
        calls = 0

        def interrupted():  # a fast daemon may have run all commands before the interrupt
            nonlocal calls
            calls += 300
            results = [program(x) for _ in range(300)]
            tt.interrupt("mine", daemon.unix)
            try:
                results[-1].numpy()
            except tt.InterruptedOpError:
                return True
            return False

        wait_until(interrupted, what="an interrupt in time")
        assert program(x).sum().item() == 64.0
        assert did(daemon)[0] - before[0] < calls * launches
        session.close()
