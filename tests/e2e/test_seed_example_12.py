"""Several processes, one tensor: a second process uses a published tensor by name and both see in-place
updates (hogwild), as with shared tensors in torch.multiprocessing."""

from support.clients import client, finish, wait_line


def test_12_several_processes_one_tensor(tt, shared_daemon):
    w = tt.zeros(3)
    tt.publish("w", w, writable=True)
    other = client("""
        w = tt.published("w")
        print("before", w.tolist(), flush=True)
        w += tt.tensor([1.0, 2.0, 3.0])
        s.synchronize()
        print("written", flush=True)
        sys.stdin.readline()
        print("after", w.tolist(), flush=True)
    """, shared_daemon.unix, stdin=-1)
    assert "[0.0, 0.0, 0.0]" in wait_line(other, "before")
    wait_line(other, "written")
    assert w.tolist() == [1.0, 2.0, 3.0]
    w[0] = 7
    tt.synchronize()
    other.stdin.write("\n")
    other.stdin.flush()
    assert "[7.0, 2.0, 3.0]" in wait_line(other, "after")
    assert finish(other)[0] == 0
    tt.publish("w", None)


TRAIN = """
    tt.manual_seed({seed})
    w = tt.published("model/w").requires_grad_()
    true = tt.arange(8.0).reshape(8, 1)
    for _ in range(60):
        x = tt.randn(32, 8)
        loss = ((x @ w - x @ true) ** 2).mean()
        loss.backward()
        with tt.no_grad():
            w -= 0.05 * w.grad
            w.grad = None
    s.synchronize()
    print("done", flush=True)
"""


def test_12_hogwild_training(tt, shared_daemon):
    """Two processes train one weight without waiting for each other."""
    model = {"w": tt.zeros(8, 1)}
    tt.publish("model", model, writable=True)
    others = [client(TRAIN.format(seed=seed), shared_daemon.unix) for seed in (1, 2)]
    for other in others:
        status, out, err = finish(other)
        assert status == 0 and "done" in out, err
    assert (model["w"].flatten() - tt.arange(8.0)).abs().max().item() < 0.2
    tt.publish("model", None)
