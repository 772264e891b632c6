"""send, recv and objects between the ranks of a world on one daemon."""

import pytest
from support.clients import finish, wait_asleep, wait_line
from support.ranks import start, told

pytestmark = pytest.mark.usefixtures("invariants")


def test_tensors_go_around(start_daemon):
    """A ring: each rank sends first, and no rank blocks another one."""
    daemon = start_daemon()
    found = told(start(daemon.unix, 3, """
x, y = tt.arange(4.0) + 10 * R, tt.zeros(4)
dist.send(x, (R + 1) % N)
x.zero_()  # what was sent stays as it was
source = dist.recv(y, (R - 1) % N)
other = tt.zeros(4)
works = dist.batch_isend_irecv([
    dist.P2POp(dist.irecv, other, (R + 1) % N), dist.P2POp(dist.isend, y, (R - 1) % N)])
for work in works:
    work.wait()
tell(source, y.tolist(), other.tolist())
"""))
    rows = [[10.0 * rank + i for i in range(4)] for rank in range(3)]
    for rank, (source, received, back) in enumerate(found):
        assert (source, received, back) == ((rank - 1) % 3, rows[(rank - 1) % 3], rows[rank])


def test_order_tags_and_any_source(start_daemon):
    daemon = start_daemon()
    found = told(start(daemon.unix, 3, """
if R == 0:
    y = tt.zeros(1, dtype=tt.int64)
    got = []
    for _ in range(4):  # from ranks 1 and 2, in the order of each
        source = dist.recv(y)
        got.append([source, y.item()])
    late, early = tt.zeros(1), tt.zeros(1)
    first, second = dist.irecv(late, 1, tag=7), dist.irecv(early, 1, tag=7)
    second.wait()  # begins the first one as well
    tagged = tt.zeros(1)
    dist.recv(tagged, 1, tag=9)
    any_rank = dist.irecv(tt.zeros(1), tag=3)
    tell(sorted(got), late.item(), early.item(), tagged.item(), any_rank.source_rank())
else:
    for i in range(2):
        dist.send(tt.tensor([10 * R + i]), 0)
    if R == 1:
        dist.send(tt.tensor([9.0]), 0, tag=9)
        dist.send(tt.tensor([1.0]), 0, tag=7)
        dist.isend(tt.tensor([2.0]), 0, tag=7).wait()
    else:
        dist.send(tt.tensor([3.0]), 0, tag=3)
    tell("sent")
"""))
    assert found[0] == [[[1, 10], [1, 11], [2, 20], [2, 21]], 1.0, 2.0, 9.0, 2]


@pytest.mark.parametrize("end", ("s.close()", "pass", "dist.destroy_process_group()"))
def test_a_sender_may_end_before_its_receiver_comes(start_daemon, tmp_path, end):
    """PyTorch's first example: a process ends right after its send."""
    daemon, ends = start_daemon(), tmp_path / "ends"
    processes = start(daemon.unix, 2, f"""
if R == 0:
    dist.send(tt.arange(3.0), 1)
    print("sent", flush=True)
    {end}
else:
    while not os.path.exists({str(ends)!r}):
        time.sleep(0.01)
    y = tt.zeros(3); dist.recv(y, 0)
    tell(y.tolist())
""")
    wait_line(processes[0], "sent")
    wait_asleep(processes[0])
    ends.touch()
    assert told(processes[1:]) == [[[0.0, 1.0, 2.0]]]
    status, _, err = finish(processes[0])
    assert status == 0, err


def test_what_does_not_fit_is_an_error_that_names_both(start_daemon):
    daemon = start_daemon()
    found = told(start(daemon.unix, 2, """
if R == 0:
    dist.send(tt.ones(3), 1)
    x = tt.ones(3)[tt.tensor([7])]  # out of range: it cannot be sent
    try:
        dist.send(x, 1); x.tolist()
        text = ""
    except IndexError as e:
        text = str(e)
    s.clear_errors()
    dist.send(tt.ones(3), 1)
    tell(text)
else:
    texts = []
    for kind in (RuntimeError, IndexError):
        y = tt.zeros(4) if kind is RuntimeError else tt.zeros(1)
        try:
            dist.recv(y, 0); y.tolist()
        except kind as e:
            texts.append(str(e))
    s.clear_errors()
    y = tt.zeros(3); dist.recv(y, 0)  # the group goes on
    tell(texts, y.tolist())
"""))
    assert "index 7 is out of range" in found[0][0]
    texts, values = found[1]
    assert "rank 0 is in send" in texts[0] and "rank 1 in recv" in texts[0]
    assert "float32[3]" in texts[0] and "float32[4]" in texts[0]
    assert "rank 0: " in texts[1] and "index 7 is out of range" in texts[1]
    assert values == [1.0, 1.0, 1.0]


def test_a_receive_that_nobody_sends_to_ends_at_its_time(start_daemon):
    daemon = start_daemon()
    processes = start(daemon.unix, 2, """
dist.barrier()
brief = dist.new_group(timeout=5)  # which both have to join within that time
if R == 0:
    try:
        y = tt.zeros(1); dist.recv(y, 1, brief); y.item()
    except tt.RankLostError as e:
        tell(str(e), tt.ones(2).sum().item())
else:
    time.sleep(600)
""")
    ((text, alive),) = told(processes[:1])
    assert "timeout in recv" in text and "rank 1 does not send" in text and alive == 2.0
    processes[1].kill()


def test_wrong_arguments(start_daemon):
    daemon = start_daemon()
    found = told(start(daemon.unix, 2, """
texts = []
for call in (
    lambda: dist.send(tt.ones(1), R), lambda: dist.recv(tt.ones(1), R), lambda: dist.send(tt.ones(1), 2),
    lambda: dist.send([1.0], 1 - R), lambda: dist.batch_isend_irecv([]),
    lambda: dist.P2POp(dist.send, tt.ones(1), 1 - R),
):
    try:
        call()
    except (TypeError, ValueError) as e:
        texts.append(f"{type(e).__name__}: {e}")
tell(texts)
"""))
    wanted = (
        "ValueError: Invalid destination rank", "ValueError: Invalid source rank", "ValueError: global rank 2",
        "TypeError: tensor must be a Tensor, not list", "ValueError: Invalid ``p2p_op_list``",
        "ValueError: Invalid ``op``",
    )
    for (texts,) in found:
        assert len(texts) == len(wanted)
        for text, start_of in zip(texts, wanted, strict=True):
            assert text.startswith(start_of), texts


def test_objects(start_daemon):
    daemon = start_daemon()
    found = told(start(daemon.unix, 2, """
objects = [
    None, True, 3, 2.5, "ü", b"\\x00\\xff", [1, (2, "three")], {"a": {1: None}, (2, 3): [4]},
    np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(1.5), tt.arange(3.0).to(tt.bfloat16),
    1 + 2j, {1, 2}, frozenset([3]), bytearray(b"ab"), tt.nn.Linear(1, 1).state_dict(), tt.float16, tt.device("cpu"),
    tt.zeros(2, 3).shape, tt.ones(2, requires_grad=True), [float("inf"), "x", None], [],
]
def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    if isinstance(a, tt.Tensor):
        return (a.dtype, a.requires_grad, a.tolist()) == (b.dtype, b.requires_grad, b.tolist())
    return bool(np.array_equal(a, b)) and getattr(a, "dtype", 0) == getattr(b, "dtype", 0)
every = [None] * N
dist.all_gather_object(every, objects)
ok = [same(each, objects) for each in every]
if R == 0:
    dist.send_object_list(objects, 1)
else:
    got = [None] * len(objects)
    ok += [dist.recv_object_list(got) == 0, same(got, objects)]
got = list(objects) if R == 0 else [None] * len(objects)
dist.broadcast_object_list(got, 0)
ok.append(same(got, objects))
one = [None]
dist.scatter_object_list(one, [("for", 0), ("for", 1)] if R == 0 else None, 0)
ok.append(one == [("for", R)])
tell(ok)
"""))
    assert found == [[[True] * 4], [[True] * 6]]


def test_an_object_that_cannot_be_sent_keeps_the_ranks_in_step(start_daemon):
    daemon = start_daemon()
    found = told(start(daemon.unix, 2, """
def tried(call):
    try:
        return call() or "sent"
    except (TypeError, ValueError) as e:
        return f"{type(e).__name__}: {e}"
bad = object() if R == 0 else "good"
every, one, got = [None] * N, [None], [bad]
texts = [
    tried(lambda: dist.all_gather_object(every, bad)),
    tried(lambda: dist.gather_object(R, every if R == 1 else None, 1)) + str(every),
    tried(lambda: dist.gather_object(R, [None] if R == 1 else None, 1)),
    tried(lambda: dist.broadcast_object_list(got, 0)),
    tried(lambda: dist.scatter_object_list(one, [bad, 1] if R == 0 else None, 0)),
    tried(lambda: dist.send_object_list([bad], 1) if R == 0 else dist.recv_object_list([None])),
]
dist.all_gather_object(every, ("then", R))
tell(texts, every)
"""))
    for rank, (texts, every) in enumerate(found):
        from_rank = "rank 0: " if rank == 1 else ""
        assert every == [["then", 0], ["then", 1]]
        for i in (0, 3, 4, 5):
            assert texts[i].startswith(f"TypeError: {from_rank}objects travel without pickle"), texts[i]
        assert texts[1].startswith("sent"), texts[1]
        assert texts[2].startswith("ValueError: " + ("rank 1: " if rank == 0 else "") + "object_gather_list"), texts[2]
