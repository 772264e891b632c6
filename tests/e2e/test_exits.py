"""The end of a program: its exit status after a late error, and the queued work after an uncaught
exception."""

import os
import secrets
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.usefixtures("each_transport")
BAD = "w = tt.zeros(3); w[tt.tensor([9])] += 1"


def run(code, daemon, seconds=60):
    start = "import os, sys, teletensor as tt\nconnect = lambda **k: tt.connect(os.environ['TT_ADDRESS'], **k)\n"
    return subprocess.run([sys.executable, "-c", start + textwrap.dedent(code)], capture_output=True, text=True,
                          timeout=seconds, check=False,
                          env={**os.environ, "TT_ADDRESS": daemon.unix, "TELETENSOR_ADDRESS": daemon.unix})


@pytest.mark.parametrize("code", [
    BAD, f"s = connect(); {BAD}", f"{BAD}; tt.keep('w', w)", f"{BAD}; sys.exit(0)", f"{BAD}; sys.exit()",
    f"s = connect(name='kept'); {BAD}; s._core.wait_completed()",
    f"import atexit; atexit.register(print, 'later'); {BAD}"])
def test_a_late_error_that_no_read_raised(shared_daemon, code):
    done = run(code, shared_daemon)
    assert done.returncode == 1
    assert "no read had raised: IndexError: " in done.stderr and "Traceback" not in done.stderr
    assert "(issued at " in done.stderr
    assert ("later" in done.stdout) == ("later" in code)


@pytest.mark.parametrize(("code", "status"), [
    (f"{BAD}; sys.exit(3)", 3), (f"{BAD}; raise ValueError('mine')", 1), ("tt.ones(3).sum()", 0),
    (f"{BAD}\ntry: tt.synchronize()\nexcept IndexError: pass", 0),
    (f"{BAD}\ns = tt.current_session()\ntry: s.close()\nexcept IndexError: pass", 0)])
def test_other_ends_keep_their_status(shared_daemon, code, status):
    done = run(code, shared_daemon)
    assert done.returncode == status, done.stderr
    assert ("mine" in done.stderr) == ("mine" in code)


def test_a_late_error_does_not_hide_what_was_printed(shared_daemon):
    done = run(f"print('out'); import ctypes; ctypes.CDLL(None).puts(b'from C'); {BAD}", shared_daemon)
    assert done.returncode == 1 and sorted(done.stdout.split("\n")) == ["", "from C", "out"]


@pytest.mark.parametrize("end", ["raise ValueError('mine')", "raise KeyboardInterrupt"])
def test_an_uncaught_exception_drops_the_queue(shared_daemon, tt, end):
    """400 products of 3000^2 take minutes; each one counts itself in a tensor of this session."""
    count = tt.zeros(())
    name = f"count-{secrets.token_hex(4)}"  # a queue that is dropped may hold the last test's tensor for a moment
    tt.publish(name, count, writable=True)
    done = run(f"""
        count = tt.published("{name}")
        a = tt.ones(3000, 3000)
        for _ in range(400):
            a = a @ a * 1e-4
            count += a[0, 0] * 0 + 1
        {end}
    """, shared_daemon, 120)
    assert end.split()[1][:8] in done.stderr and "InterruptedOp" not in done.stderr and done.returncode != 0
    assert count.item() < 400


def test_an_exception_that_was_caught_drops_nothing(shared_daemon):
    """A caught exception does not count: only an exception that ends the program drops the queue."""
    done = run(f"""
        try: raise ValueError
        except ValueError: pass
        {BAD}
    """, shared_daemon)
    assert done.returncode == 1 and "no read had raised" in done.stderr


def test_a_named_session_keeps_its_queue(shared_daemon):
    """The next program of that name continues with the session, whatever ended the first one."""
    done = run("""
        s = connect(name="goes-on")
        s.__enter__()
        a = tt.ones(200, 200)
        for _ in range(50): a = a @ a / 200
        s.keep("a", a)
        raise ValueError
    """, shared_daemon)
    assert done.returncode == 1 and "ValueError" in done.stderr
    done = run("""
        with connect(name="goes-on") as s:
            print(s.kept()["a"].sum().item())
    """, shared_daemon)
    assert done.stdout == "40000.0\n", done.stderr
