"""Finalizers that use tensors, on whatever thread the collector runs them."""

import pytest
from support.clients import client, finish

pytestmark = pytest.mark.usefixtures("each_transport")


def test_a_finalizer_that_reads(shared_daemon, each_transport):
    """Where it runs on a thread of grpcio, which would wait for itself, it gets an error."""
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
        gc.collect()
        print(read > 0, read + failed, failed)
    """, shared_daemon.unix)
    status, out, err = finish(program, 240)
    assert status == 0, err
    good, both, failed = out.split()
    assert good == "True" and both == "1500", out
    assert each_transport == "grpcio" or failed == "0", out
