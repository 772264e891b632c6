"""A second import in one process, after a program has removed the modules (test runners, plug-in hosts)."""

import os
import subprocess
import sys
import textwrap

import pytest

PURGE = """
def purge():
    for name in [n for n in sys.modules if n.partition(".")[0] == "teletensor"]:
        del sys.modules[name]
"""


def run(code, daemon, **variables):
    start = f"import importlib, os, sys\nimport teletensor as tt\naddress = os.environ['TT_ADDRESS']\n{PURGE}\n"
    return subprocess.run([sys.executable, "-c", start + textwrap.dedent(code)], capture_output=True, text=True,
                          timeout=60, check=False, env={**os.environ, "TT_ADDRESS": daemon.unix, **variables})


@pytest.mark.parametrize("again", ["import teletensor", "import teletensor.nn", "from teletensor import jit",
                                   "importlib.import_module('teletensor._core')", "from teletensor import _core"])
@pytest.mark.parametrize("before", ["tt.connect(address)", "pass"])
def test_an_import_error_and_the_first_one_works(shared_daemon, each_transport, again, before):
    done = run(f"""
        {before}
        for _ in range(2):
            purge()
            try:
                {again}
            except ImportError as error:
                assert "second time" in str(error), error
            else:
                raise AssertionError
        if {before == "pass"}:
            tt.connect(address)
        x = tt.ones(3, requires_grad=True)
        (x * x).sum().backward()
        f = tt.compile(lambda a: a.sin().sum())
        print(x.grad.tolist(), f(tt.zeros(3)).item(), tt.nn.Linear(2, 1)(tt.ones(1, 2)).shape, x)
        assert tt.linalg.det(tt.eye(2)).item() == 1.0
        print(tt.func.jacrev(lambda a: a * 2)(tt.ones(2)).tolist())
        assert sys.modules["teletensor"] is tt
    """, shared_daemon)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[2.0, 2.0, 2.0] 0.0 ")


def test_without_the_finder(shared_daemon):
    """A host program that restores sys.meta_path as well; NumPy reports the same in such a process."""
    done = run("""
        finders = [f for f in sys.meta_path if not type(f).__module__.startswith("teletensor")]
        s = tt.connect(address)
        purge()
        sys.meta_path[:] = finders
        try:
            import teletensor
        except ImportError as error:
            assert "second time" in str(error), error
        print((tt.ones(3) + 1).tolist())
    """, shared_daemon)
    assert (done.returncode, done.stdout) == (0, "[2.0, 2.0, 2.0]\n"), done.stderr


def test_reload_is_no_second_import(shared_daemon):
    done = run("""
        s = tt.connect(address)
        from teletensor import version
        importlib.reload(version)
        print((tt.ones(2) * 1).tolist())
    """, shared_daemon)
    assert (done.returncode, done.stdout) == (0, "[1.0, 1.0]\n"), done.stderr


@pytest.mark.parametrize("patch", ["_thread.start_new_thread = lambda *a, **k: 0",
                                   "_thread.start_new_thread = Fake().start"])
def test_patched_threads(shared_daemon, patch):
    """gevent and eventlet replace the functions of threads; their threads stop while another thread
    waits."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(f"""
        import _thread
        class Fake:
            def start(self, *a): return 0
        {patch}
        import teletensor as tt
        for action in (lambda: tt.connect({shared_daemon.unix!r}), lambda: tt.ones(3)):
            try:
                action()
            except tt.TeletensorError as error:
                print(error)
    """)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("those of gevent") == 2 and "thread=False" in done.stdout, done.stdout
