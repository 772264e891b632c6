"""Memory of a GPU that the daemon shares with a process on its machine, over the fake driver. Physical
memory of the fake driver is a file, so the client's process maps the bytes that the daemon wrote.
"""

import os
import textwrap

import pytest
from support.clients import client as start_client, finish, wait_line
from support.cuda import CLIENT_LIBRARY, fake, last_words
from support.sharer import Sharer, ticket_of

TAKE_GPU = 5

# The fake driver in the client's process as well: what it maps is read and written by the driver's copies.
HELPERS = """
import ctypes, gc
cuda = ctypes.CDLL(os.environ["TELETENSOR_CUDA_DRIVER"])

def inside(work):
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    code = work()
    assert cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
    return code

def read(shared):
    facts = shared.__cuda_array_interface__
    out = np.empty(facts["shape"], facts["typestr"])
    at = ctypes.c_uint64(facts["data"][0])
    assert inside(lambda: cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(out.ctypes.data), at,
                                               ctypes.c_size_t(out.nbytes))) == 0
    return out

def write(shared, values):
    at = ctypes.c_uint64(shared.__cuda_array_interface__["data"][0])
    assert inside(lambda: cuda.cuMemcpyHtoD_v2(at, ctypes.c_void_p(values.ctypes.data),
                                               ctypes.c_size_t(values.nbytes))) == 0

def used():
    return {str(each["device"]): each["used"] for each in s.memory()}["cuda:0"]

def settles(least):
    while True:
        s.synchronize()
        if used() <= least: return
        time.sleep(0.01)

def raises(kind, text, work):
    try:
        work()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError("nothing was raised")
"""


def gpu_client(code, address, **options):
    environment = fake(**options)[1]
    os.environ.update(environment, TELETENSOR_CUDA_DRIVER=CLIENT_LIBRARY)
    try:
        return start_client(HELPERS + textwrap.dedent(code), address)
    finally:
        for name in (*environment, "TELETENSOR_CUDA_DRIVER"):
            del os.environ[name]


def passes(process):
    status, out, err = finish(process)
    assert status == 0, out + err
    return out


@pytest.fixture
def daemon(start_daemon):
    flags, environment = fake()
    return start_daemon(*flags, env=environment)


def test_a_tensor_is_read_and_written_where_the_gpu_has_it(daemon):
    passes(gpu_client("""
        x = tt.arange(3 << 18, device="cuda").reshape(3, -1).float()
        want = x.cpu().numpy()
        before = used()
        with tt.shared_cuda(x) as shared:
            facts = shared.__cuda_array_interface__
            assert (facts["shape"], facts["typestr"], facts["version"]) == ((3, 1 << 18), "<f4", 3)
            assert facts["data"][1] is False and facts["strides"] is None
            assert np.array_equal(read(shared), want)
            assert used() == before + (4 << 20)  # whole units of 2 MiB
            # What each writes is its own.
            x += 1
            write(shared, -want)
            assert np.array_equal(read(shared), -want)
            assert np.array_equal(x.cpu().numpy(), want + 1)
        raises(ValueError, "closed", lambda: shared.__cuda_array_interface__)
        settles(before)
    """, daemon.unix))
    last_words(daemon)  # the fake driver has found nothing wrong


def test_views_dtypes_and_sizes(daemon):
    passes(gpu_client("""
        base = tt.arange(60, device="cuda").reshape(6, 10)
        for x in (base[1:5:2, ::3], base.t(), base[2, 3], base.to(tt.uint8), base > 30, base.double(),
                  base.to(tt.complex64), base.half().view(tt.int16)):
            shared = tt.shared_cuda(x)
            want = x.cpu().numpy()
            found = read(shared)
            assert found.dtype == want.dtype and np.array_equal(found, want), (found, want)
        empty = tt.shared_cuda(base[:0])
        assert empty.__cuda_array_interface__["shape"] == (0, 10)
        assert empty.__cuda_array_interface__["data"] == (0, False)
        empty.close()
    """, daemon.unix))


def test_it_lives_as_long_as_the_array_and_dies_with_the_process(daemon):
    import teletensor as tt

    process = gpu_client("""
        x = tt.ones(1 << 20, device="cuda")
        kept = tt.shared_cuda(x)
        dropped = tt.shared_cuda(x)
        x = None
        before = used()
        dropped = None
        gc.collect()
        settles(before - (4 << 20))
        assert read(kept).sum() == 1 << 20
        print("there", flush=True)
        time.sleep(600)
    """, daemon.unix)
    wait_line(process, "there")
    process.kill()
    finish(process)
    with tt.connect(daemon.unix) as s:  # the device is as it was
        x = tt.full((1 << 20,), 2.0, device="cuda")
        assert x.sum().item() == 2 << 20
        assert s.memory()[1]["used"] > 0


def test_the_session_ends_before_the_array(daemon):
    passes(gpu_client("""
        x = tt.arange(1 << 18, device="cuda")
        want = x.cpu().numpy()
        shared = tt.shared_cuda(x)
        s.__exit__(None, None, None)
        assert np.array_equal(read(shared), want)  # the pages are this process's alone now
        write(shared, want + 5)
        assert np.array_equal(read(shared), want + 5)
        shared.close()
    """, daemon.unix))
    last_words(daemon)


def test_what_is_shared_next_shows_nothing_of_what_was_there(daemon):
    """A unit is 2 MiB: behind a small tensor lies nothing but zeros."""
    passes(gpu_client("""
        shared = tt.shared_cuda(tt.full((1 << 20,), 7.0, device="cuda"))
        shared.close()
        small = tt.shared_cuda(tt.full((10,), 3, device="cuda"))
        at = small.__cuda_array_interface__["data"][0]
        out = np.empty(2 << 20, np.uint8)
        assert inside(lambda: cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(at),
                                                   ctypes.c_size_t(out.nbytes))) == 0
        assert np.array_equal(out[:80].view(np.int64), np.full(10, 3))
        assert not out[80:].any()
    """, daemon.unix))


def test_what_is_refused(daemon):
    passes(gpu_client("""
        x = tt.ones(8, device="cuda")
        raises(TypeError, "expected a tensor, got list", lambda: tt.shared_cuda([1.0]))
        raises(RuntimeError, "the tensor lies on cpu, not on a GPU", lambda: tt.shared_cuda(tt.ones(8)))
        raises(RuntimeError, "requires grad", lambda: tt.shared_cuda(x.clone().requires_grad_()))
        raises(TypeError, "has no bfloat16", lambda: tt.shared_cuda(x.bfloat16()))
        # An instruction that failed: its own error, with its line.
        bad = tt.ones(1 << 18, device="cuda")[tt.tensor([1 << 20], device="cuda")]
        raises(IndexError, "", lambda: tt.shared_cuda(bad))
        assert read(tt.shared_cuda(x)).sum() == 8
    """, daemon.unix))


def test_not_over_tcp(daemon, monkeypatch):
    monkeypatch.setenv("TELETENSOR_TOKEN_FILE", daemon.token_file)
    passes(gpu_client("""
        x = tt.ones(8, device="cuda")
        raises(RuntimeError, "over its UNIX socket", lambda: tt.shared_cuda(x))
    """, daemon.tcp))


def test_a_process_that_does_not_see_the_gpu_or_has_no_cuda(start_daemon):
    flags, environment = fake(devices=2)
    daemon = start_daemon(*flags, env=environment)
    passes(gpu_client("""
        assert read(tt.shared_cuda(tt.ones(8, device="cuda:0"))).sum() == 8
        before = {str(each["device"]): each["used"] for each in s.memory()}
        x = tt.ones(8, device="cuda:1")
        raises(RuntimeError, "does not see the GPU", lambda: tt.shared_cuda(x))
    """, daemon.unix, devices=1))
    os.environ["TELETENSOR_CUDA_DRIVER"] = "libno-such-driver.so.1"
    try:
        process = start_client("""
            x = tt.ones(8, device="cuda")
            try:
                tt.shared_cuda(x)
            except RuntimeError as error:
                assert "no CUDA driver: libno-such-driver" in str(error), error
            else:
                raise AssertionError
        """, daemon.unix)
    finally:
        del os.environ["TELETENSOR_CUDA_DRIVER"]
    passes(process)


def test_a_gpu_without_such_memory_says_so(start_daemon):
    flags, environment = fake(shares="none")
    daemon = start_daemon(*flags, env=environment)
    passes(gpu_client("""
        x = tt.ones(8, device="cuda")
        raises(RuntimeError, "cuda:0 cannot share memory with other processes", lambda: tt.shared_cuda(x))
        assert x.sum().item() == 8
    """, daemon.unix))


def test_it_counts_in_the_budgets(start_daemon):
    flags, environment = fake("--device-memory", "24MiB", memory=64)
    daemon = start_daemon(*flags, env=environment)
    passes(gpu_client("""
        x = tt.ones(2 << 20, device="cuda")  # 8 MiB
        first = tt.shared_cuda(x)
        s.synchronize()
        raises(tt.OutOfMemoryError, "no memory on cuda:0 for 8388608 bytes",
               lambda: [tt.shared_cuda(x) for _ in range(3)])
        gc.collect()
        first.close()
        settles(10 << 20)
        # What was cached goes back to the driver, which makes memory of the other kind of it.
        y = tt.ones(2 << 20, device="cuda") + 1
        s.synchronize()
        y = None
        settles(10 << 20)
        second = tt.shared_cuda(x)
        assert read(second).sum() == 2 << 20
    """, daemon.unix, memory=64))


def test_what_moves_to_the_host_is_not_what_is_shared(start_daemon):
    flags, environment = fake("--device-memory", "48MiB", memory=64)
    daemon = start_daemon(*flags, env=environment)
    passes(gpu_client("""
        x = tt.arange(2 << 20, device="cuda").float()
        shared = tt.shared_cuda(x)
        want = read(shared)
        s.synchronize()
        held = used()
        with tt.connect(os.environ["TT_TEST_ADDRESS"]) as other:
            y = tt.ones(9 << 19, device="cuda")  # 18 MiB
            assert y.sum().item() == 9 << 19
            z = y + 1
            assert z.sum().item() + y.sum().item() == 27 << 19
        assert used() < held  # x had to go
        assert used() >= 8 << 20
        assert np.array_equal(read(shared), want)
        assert np.array_equal(x.cpu().numpy(), want)
    """, daemon.unix, memory=64))


def test_rights(daemon):
    """Only the ticket of the value's own session is accepted; a value on the host has no such memory."""
    import teletensor as tt

    raw, session, ticket = ticket_of(daemon.socket, "raw")
    with tt.connect(daemon.unix) as s:
        x = tt.ones(1 << 20, device="cuda")
        fetch = x._fetch_bulk()
        s.synchronize()
        with Sharer(daemon.socket) as other:  # another session's ticket covers only its own numbers
            code = other.ask(TAKE_GPU, session, ticket, number=fetch.seq)[0]
            assert code != 0
        with Sharer(daemon.socket) as nobody:
            assert nobody.ask(TAKE_GPU, session, b"0" * 32, number=fetch.seq)[0] == 5
        del fetch
        on_host = tt.ones(1 << 20)._fetch_bulk()
        s.synchronize()
        with pytest.raises(NotImplementedError):
            s._shared.take_gpu(s._core, on_host.seq, 4 << 20)
    del raw
