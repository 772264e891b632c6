"""Finalizers that use tensors, on whatever thread the collector runs them."""

import textwrap

from support.clients import client, finish, wait_line
from support.proxy import Proxy

# A program whose finalizers read a tensor and send one; each read or send ends with its value or with an
# error.
METER = """
import gc
heard = []
class Meter:
    def __init__(self):
        self.total = tt.ones(3)
    def __del__(self):
        try:
            heard.append(self.total.sum().item() == 3.0)
        except RuntimeError as error:
            heard.append(str(error))
        try:
            heard.append(tt.tensor(np.ones(1 << 20)).shape == (1 << 20,))
        except RuntimeError as error:
            heard.append(str(error))
"""


def meters(code, address, **options):
    return client(METER + textwrap.dedent(code), address, **options)


def test_a_finalizer_that_reads(shared_daemon, each_transport):
    """A finalizer that runs on a thread of grpcio would wait for itself, so it gets an error.

    Chance decides which thread runs a collection. With grpcio it may always be a thread of grpcio."""
    program = client("""
        import gc
        read = failed = 0
        class Meter:
            def __init__(self):
                self.total = tt.ones(3)
                self.me = self
            def __del__(self):
                global read, failed
                try:
                    assert self.total.sum().item() == 3.0
                    read += 1
                except RuntimeError as error:
                    assert "finalizer" in str(error), error
                    failed += 1
        gc.set_threshold(50)
        for _ in range(1500):
            Meter()
            tt.rand(8, 8).sum().item()
        gc.set_threshold(0)
        while read + failed < 1500:  # does nothing where another thread has not ended its collection
            gc.collect()
        both = read + failed
        read = 0
        Meter()  # With the threshold of 0, only the main thread collects it.
        gc.collect()
        print(read == 1, both, failed)
    """, shared_daemon.unix)
    status, out, err = finish(program, 240)
    assert status == 0, err
    good, both, failed = out.split()
    assert good == "True" and both == "1500", out
    assert each_transport == "grpcio" or failed == "0", out


def test_a_finalizer_under_a_lock_of_grpcio(shared_daemon, monkeypatch):
    """A thread that waits for a call holds the lock that grpcio's thread needs to deliver the finalizer's
    result: the finalizer gets an error, and the call gets its reply."""
    monkeypatch.setenv("TELETENSOR_TRANSPORT", "grpcio")
    monkeypatch.setenv("TELETENSOR_SHARED_MEMORY", "0")
    program = meters("""
        from grpc import _common
        wait, meters = _common.wait, [Meter()]
        def reply_is_held_up():
            frames = list(sys._current_frames().values())
            while frames:
                frame = frames.pop()
                if frame.f_code.co_name == "handle_event":
                    return True
                frames += [frame.f_back] if frame.f_back else []
        def collected_under_the_lock(waits, complete, *rest, **options):
            if meters and threading.current_thread().name == "teletensor-worker":
                while not complete() and not reply_is_held_up():
                    time.sleep(0.001)
                if not complete():
                    meters.clear()
            return wait(waits, complete, *rest, **options)
        _common.wait = collected_under_the_lock
        while meters:
            s.status()
        print(tt.ones(3).sum().item(), [isinstance(each, str) and "finalizer" in each for each in heard])
    """, shared_daemon.unix)
    status, out, err = finish(program)
    assert status == 0, err
    assert out.split(maxsplit=1) == ["3.0", "[True, True]\n"], out


def test_a_finalizer_at_every_step_of_other_threads(start_daemon, each_transport, monkeypatch):
    """Finalizers run on every thread where the collector may run: on this package's threads and on those of
    grpcio, during calls, after the connection is cut, and while the session is closed."""
    monkeypatch.setenv("TELETENSOR_SHARED_MEMORY", "0")
    daemon = start_daemon("--lease", "60")
    proxy = Proxy(daemon.socket)
    try:
        program = meters("""
            from teletensor._sessions import interrupt as _interrupt
            seen, on = set(), []
            busy = threading.local()
            def step(frame, event, argument):
                if event != "call" or not on or getattr(busy, "now", False):
                    return
                thread = threading._active.get(threading.get_ident())
                kind = thread and thread._name.translate(dict.fromkeys(b"0123456789"))
                place = kind, frame.f_code, frame.f_back and frame.f_back.f_code
                if place in seen:
                    return
                seen.add(place)
                busy.now = True
                Meter()
                busy.now = False
            def repeat(work):
                before = -1
                while before != len(seen):
                    before = len(seen)
                    try:
                        work()
                    except tt.TeletensorError as error:  # a call that finalizers have made late
                        assert "eadline" in str(error), error
            s.__exit__(None, None, None)
            threading.setprofile(step)
            _interrupt.shielded(lambda _: sys.setprofile(step))
            s = tt.connect(sys.stdin.readline().strip())  # the default one, of all threads
            on.append(True)
            data = np.arange(1 << 20, dtype=np.float32)
            def calls():
                s.status()
                assert (tt.tensor(data) + 1).numpy()[-1] == 1 << 20
            repeat(calls)
            print("calls", flush=True)
            sys.stdin.readline()
            x = tt.ones(3)
            assert x.sum().item() == 3.0
            repeat(calls)
            print("again", flush=True)
            s.close()
            on.clear()
            fit = "finalizer", "eadline", "connection", "closed"
            print(len(seen), [each for each in heard if each is not True and not any(f in each for f in fit)])
        """, daemon.unix, stdin=-1)
        program.stdin.write(proxy.address + "\n")
        program.stdin.flush()
        wait_line(program, "calls")
        proxy.cut()
        program.stdin.write("\n")
        program.stdin.flush()
        status, out, err = finish(program)
    finally:
        proxy.close()
    assert status == 0, err
    steps, unfit = out.splitlines()[-1].split(maxsplit=1)
    # The native transport reached 43 to 111 places, depending on the time of the reconnection.
    assert int(steps) > 20 and unfit == "[]", out


def test_a_finalizer_in_the_wait_for_a_size_that_it_needs(shared_daemon, each_transport):
    """A signal's handler allocates while its thread waits, so that the collector may run there."""
    program = client("""
        import gc
        from support.busy import held
        heard = []
        class Reader:
            def __init__(self, counts):
                self.counts = counts
                self.me = self
            def __del__(self):
                try:
                    heard.append(self.counts.shape)
                except RuntimeError as error:
                    heard.append("finalizer" in str(error))
        def collect(number, frame):
            gc.collect()
            work.__exit__(None, None, None)
        def alarm(waits):
            while s._core.waits == waits:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGALRM)
        gc.disable()
        signal.signal(signal.SIGALRM, collect)
        work = held(tt, s)
        work.__enter__()
        values, counts = tt.unique(tt.tensor([1, 2, 2, 3]), return_counts=True)
        Reader(counts)
        threading.Thread(target=alarm, args=(s._core.waits,)).start()
        print(values.tolist(), counts.tolist(), heard)
    """, shared_daemon.unix)
    status, out, err = finish(program)
    assert status == 0, err
    assert out == "[1, 2, 3] [1, 2, 1] [True]\n", out
