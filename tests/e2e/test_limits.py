"""Resources of a session other than bytes: each limit is reached and reported, and no longer applies once
the use is below it."""

import subprocess
import sys

import numpy as np
import pytest
from support.daemon import binary, wait_until

MIB = 1 << 20


def limit_of(session, name):
    found = session.status()["limits"][name]
    return found["used"], found["limit"]


def functions(tt, count, steps=1):
    """Captured functions, each of its own program."""
    def make(i):
        def f(x):
            for _ in range(steps):
                x = x * (i + 2.0)
            return x
        return tt.compile(f)
    return [make(i) for i in range(count)]


def called(f, x):
    """The result when it runs as a program, which is from its second call on."""
    f(x)
    return f(x)


def test_tensors_of_a_session(start_daemon, tt):
    with tt.connect(start_daemon("--session-handles", "100").unix) as s:
        held = [tt.ones(1) for _ in range(100)]
        assert held[-1].item() == 1.0
        s.synchronize()
        assert limit_of(s, "handles") == (100, 100)
        held[0].add_(1)  # no new name
        assert held[0].item() == 2.0
        with pytest.raises(tt.OutOfMemoryError) as refused:
            tt.ones(2).prod().item()
        text = str(refused.value)
        assert "100 of at most 100" in text and "session_handles" in text and "test_limits.py" in text
        assert held[0].item() == 2.0
        del held[1]
        one = tt.ones(1)
        assert one.item() == 1.0
        with pytest.raises(tt.OutOfMemoryError, match="session_handles"):
            one.exp().item()
        assert one.item() == 1.0
    with tt.connect(s.address) as other:  # the quota was released
        assert len([tt.ones(1) for _ in range(100)]) == 100
        other.synchronize()


def test_what_a_backward_makes_counts(start_daemon, tt):
    with tt.connect(start_daemon("--session-handles", "20").unix):
        w = [tt.ones(2, requires_grad=True) for _ in range(10)]
        loss = tt.stack(w).sum()
        assert loss.item() == 20.0
        del w[8:]
        loss.backward()
        assert [x.grad.tolist() for x in w] == [[1.0, 1.0]] * 8


def test_names_and_tape(start_daemon, tt):
    with tt.connect(start_daemon("--session-tape", "8MiB").unix) as s:
        w = tt.ones(1, requires_grad=True)

        def grow(steps):
            x = w
            for _ in range(steps):
                x = x + 1
            return x

        assert grow(1000).item() == 1001.0
        with pytest.raises(tt.OutOfMemoryError) as refused:
            grow(20_000).item()
        text = str(refused.value)
        assert "names and tape" in text and "of at most 8388608 bytes" in text and "session_tape" in text
        del refused  # the traceback's frames refer to recorded tensors
        assert w.item() == 1.0
        x = grow(1000)
        x.backward()
        assert w.grad.item() == 1.0
        used, limit = limit_of(s, "tape")
        assert 0 < used <= limit == 8 * MIB


def test_functions_are_charged_to_the_memory(start_daemon, tt):
    """Functions of many steps run out of the session's memory as tensors do, and only in this session."""
    daemon = start_daemon("--session-memory", "64MiB")
    with tt.connect(daemon.unix) as s:
        x = tt.ones(4)
        x.tolist()
        before = s.memory()[0]["used"]
        fs = functions(tt, 8, steps=8_000)
        assert called(fs[0], x).shape == x.shape
        s.synchronize()
        assert s.memory()[0]["used"] - before > 8_000 * 1_000
        with pytest.raises(tt.OutOfMemoryError, match=r"and \d functions \(\d+ bytes with their plans\)") as refused:
            for f in fs:
                called(f, x).tolist()
        with tt.connect(daemon.unix, name="other") as other, other.as_current():
            assert (tt.ones(2) + 1).tolist() == [2.0, 2.0]
        del fs, f, refused
        assert x.tolist() == [1.0] * 4
        assert called(functions(tt, 1)[0], x).tolist() == [2.0] * 4
        assert s.memory()[0]["used"] <= before


def test_programs(start_daemon, tt):
    with tt.connect(start_daemon("--session-programs", "8").unix) as s:
        x = tt.ones(2)
        fs = functions(tt, 9)
        assert [called(f, x).tolist()[0] for f in fs[:8]] == [2.0 + i for i in range(8)]
        # A value may arrive shortly before its frame is counted.
        wait_until(lambda: limit_of(s, "programs") == (8, 8), what="all are counted")
        with pytest.raises(tt.OutOfMemoryError, match="8 of at most 8 .limit session_programs"):
            called(fs[8], x)
        assert fs[3](x).tolist() == [5.0, 5.0]
        del fs[:2]
        assert called(fs[6], x).tolist() == [10.0, 10.0]  # the one that was refused
        s.synchronize()
        assert limit_of(s, "programs") == (7, 8)


def test_steps_and_bytes_of_programs(start_daemon, tt):
    """The steps and bytes of programs are counted with all calls inlined."""
    with tt.connect(start_daemon("--session-program-steps", "100", "--session-program-bytes", "64KiB").unix) as s:
        x = tt.ones(2)
        first, inner, long = functions(tt, 3, steps=60)
        called(first, x).tolist()
        wait_until(lambda: limit_of(s, "program_steps") == (60, 100), what="the first is counted")

        with pytest.raises(tt.OutOfMemoryError) as refused:
            called(tt.compile(lambda y: inner(y) + 1), x)
        assert "60 of at most 100, and this needs 61 more (limit session_program_steps)" in str(refused.value)
        del first
        assert called(long, x).isfinite().all().item()
        data = np.arange(10_000, dtype=np.float32)
        large = tt.compile(lambda y: y + tt.tensor(data).sum() + tt.tensor(data + 1).sum())
        del long
        with pytest.raises(tt.OutOfMemoryError, match="session_program_bytes"):
            called(large, x)
        assert x.tolist() == [1.0, 1.0]


def test_time_for_programs(start_daemon, tt):
    """The time to check and plan programs is limited: a call beyond the limit did not happen."""
    refusal = "call.*: the session has .* of at most 100 .limit session_plan_ms"
    daemon = start_daemon("--session-plan-ms", "100", "--session-program-steps", "10000000")
    with tt.connect(daemon.unix) as s:
        x, total = tt.ones(2), tt.zeros(2)
        count = tt.compile(lambda y: total.add_(y))
        count(x)  # line by line
        held, used = [], 0
        while used < 100:
            held += functions(tt, 1, steps=5000)
            try:
                assert called(held[-1], x).tolist() == [float("inf")] * 2
            except tt.OutOfMemoryError as error:
                assert "session_plan_ms" in str(error)  # otherwise this loop would not end
            used, most = limit_of(s, "plan_ms")
        assert most == 100
        with pytest.raises(tt.OutOfMemoryError, match=refusal):
            count(x)
            s.synchronize()
        assert total.tolist() == [1.0, 1.0]
        held.clear()

        def given_back():
            tt.ones(2).prod().item()
            return limit_of(s, "plan_ms")[0] == 0
        wait_until(given_back, what="the time of programs that are gone")
        (other,) = functions(tt, 1)
        assert called(other, x).tolist() == [2.0, 2.0]


def test_no_time_to_check_a_program(start_daemon, tt):
    """The program is valid but is not run: it gives no results and writes nothing; other sessions are not
    affected."""
    daemon = start_daemon("--session-plan-ms", "1")
    with tt.connect(daemon.unix) as other, tt.connect(daemon.unix) as s:
        x, total = tt.ones(2), tt.zeros(2)

        def long(value):
            for _ in range(10_000):
                value = value * 1.5
            total.add_(1.0)
            return value
        f = tt.compile(long)
        f(x)  # line by line
        assert total.tolist() == [1.0, 1.0]
        with pytest.raises(tt.OutOfMemoryError) as refused:
            f(x).sum().item()
        assert "call of a program that was not checked for lack of time: the session has " in str(refused.value)
        assert "of at most 1 (limit session_plan_ms)" in str(refused.value)
        assert total.tolist() == [1.0, 1.0] and x.tolist() == [1.0, 1.0]
        s.keep("total", total)
        assert s.kept()["total"].tolist() == [1.0, 1.0]
        with other.as_current():
            assert (tt.ones(3) * 2).sum().item() == 6.0


def test_a_program_of_too_many_items(start_daemon, tt):
    """The excess is an error at its line; the session continues."""
    with tt.connect(start_daemon().unix):
        x = tt.ones(2)
        (f,) = functions(tt, 1, steps=17_000)
        with pytest.raises(tt.OutOfMemoryError, match="program: more than 262144 items"):
            called(f, x)
        assert x.tolist() == [1.0, 1.0]


def test_staged_uploads(start_daemon, tt):
    with tt.connect(start_daemon("--session-staged", "4MiB").unix) as s:
        with pytest.raises(tt.OutOfMemoryError) as refused:
            tt.tensor(np.ones(2 * MIB, np.float32)).sum().item()
        text = str(refused.value)
        assert "of at most 4194304 bytes, and this needs 8388608 bytes more" in text
        assert "session_staged" in text
        kept = []
        for i in range(6):
            kept.append(tt.tensor(np.full(MIB // 2, i, np.float32)))
            s.synchronize()  # the upload is used, so there is room for the next one
        assert [k[0].item() for k in kept] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert limit_of(s, "staged") == (0, 4 * MIB)


def test_names_that_are_kept_and_published(start_daemon, tt):
    with tt.connect(start_daemon("--session-kept", "3", "--session-published", "2").unix) as s:
        x = tt.ones(2)
        for name in "abc":
            s.keep(name, x)
        s.keep("a", x + 1)  # a name that is there
        with pytest.raises(tt.OutOfMemoryError, match="3 of at most 3 .limit session_kept"):
            s.keep("d", x)
        s.keep("b", None)
        s.keep("d", x)
        for name in "pq":
            tt.publish(name, tt.ones(1))
        held = [tt.ones(1) for _ in "pqr"]
        for name, t in zip("pq", held, strict=False):
            tt.publish(name, t)
        s.synchronize()
        assert limit_of(s, "published") == (2, 2) and limit_of(s, "kept") == (3, 3)
        with pytest.raises(tt.OutOfMemoryError, match="2 of at most 2 .limit session_published"):
            tt.publish("r", held[2])
            s.synchronize()
        tt.publish("p", None)
        tt.publish("r", held[2])
        s.synchronize()
        assert held[2].item() == 1.0


def test_commands_ahead(start_daemon, tt):
    """The client waits when it may not send more commands."""
    with tt.connect(start_daemon("--session-queue", "256").unix):
        x = tt.zeros(1)
        for _ in range(3000):
            x = x + 1
        assert x.item() == 3000.0


def test_of_one_user(start_daemon, tt, tmp_path):
    config = tmp_path / "teletensord.toml"
    config.write_text("""
session_handles = 1000
session_programs = 2
[users.alice]
session_handles = 50
""", encoding="utf-8")
    daemon = start_daemon("--config", str(config), env={"TELETENSOR_SESSION_STAGED": "1MiB"})

    def token(user):
        return subprocess.run([sys.executable, "-m", "teletensor.cli", "token", "create", user, "--address",
                               daemon.unix], capture_output=True, text=True, timeout=60).stdout.strip()

    for user, most in (("alice", 50), ("bob", 1000)):
        with tt.connect(daemon.tcp, token=token(user)) as s:
            s.synchronize()
            limits = {name: use["limit"] for name, use in s.status()["limits"].items()}
            assert limits["handles"] == most and limits["programs"] == 2 and limits["staged"] == MIB
            held = [tt.ones(1) for _ in range(60)]
            if user == "alice":
                with pytest.raises(tt.OutOfMemoryError, match="of at most 50"):
                    s.synchronize()
            else:
                assert held[-1].item() == 1.0
                shown = subprocess.run(
                    [sys.executable, "-m", "teletensor.cli", "memory", "--session", str(s.id), "--address",
                     daemon.unix], capture_output=True, text=True, timeout=60).stdout
                assert "session_handles" in shown and "1000" in shown and "its memory" in shown


@pytest.mark.parametrize("line", ['session_programs = 0', 'session_handles = -1', 'session_queue = 10',
                                  '[users.a]\nsession_tape = "much"'])
def test_what_makes_no_sense_is_refused_at_start(tmp_path, line):
    config = tmp_path / "teletensord.toml"
    config.write_text(line + "\n", encoding="utf-8")
    done = subprocess.run([binary(), "--config", str(config), "--listen", "127.0.0.1:0", "--no-socket"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "session_" in done.stdout + done.stderr


def test_a_restored_session_has_its_own_limits(start_daemon, tt):
    """The client's limit remains valid, although the next daemon is configured with a lower one."""
    daemon = start_daemon("--restart", "120", env={"TELETENSOR_SESSION_PROGRAMS": "6"})
    with tt.connect(daemon.unix) as s:
        x = tt.ones(2)
        fs = functions(tt, 7)
        for f in fs[:4]:
            called(f, x)
        s.synchronize()
        daemon.terminate()
        daemon.env = {"TELETENSOR_SESSION_PROGRAMS": "3"}
        daemon.restart()
        assert called(fs[4], x).tolist() == [6.0, 6.0] and limit_of(s, "programs") == (5, 6)
        called(fs[5], x)
        with pytest.raises(tt.OutOfMemoryError, match="6 of at most 6"):
            called(fs[6], x)
    with tt.connect(daemon.unix) as s:
        s.synchronize()
        assert limit_of(s, "programs") == (0, 3)


def test_a_rank_above_the_limit_is_refused_by_whichever_way_the_elements_would_go(start_daemon, tt):
    daemon = start_daemon()
    for address, token in ((daemon.unix, None), (daemon.tcp, daemon.token)):
        with tt.connect(address, token=token):
            for count in (1, 1 << 14, 1 << 19, 1 << 21):  # in the frame, in shared memory, as a stream
                for rank in (13, 14, 40, 60):
                    with pytest.raises(RuntimeError, match=f"rank {rank} is above the limit of 12"):
                        tt.from_numpy(np.zeros([count] + [1] * (rank - 1)))
            assert tt.from_numpy(np.ones([1 << 19] + [1] * 11)).sum().item() == 1 << 19


def test_tensors_of_many_commands_in_one_frame(start_daemon, tt):
    with tt.connect(start_daemon().unix):
        x = tt.ones(1)
        for count in (1000, 30000, 65000):
            made = [tt._core.ops["cat"]([x] * count, 0) for _ in range(150 if count == 1000 else 3)]
            assert [len(each) for each in made] == [count] * len(made)
            assert made[-1].sum().item() == count
        with pytest.raises(RuntimeError, match="7000. tensors and numbers in one call"):
            tt._core.ops["cat"]([x] * 70000, 0)
        assert tt.cat([x] * 70000).sum().item() == 70000
