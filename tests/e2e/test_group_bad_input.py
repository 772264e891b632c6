"""Invalid arguments of tt.distributed: each is an error at its line on every rank, and the world still
works."""

import json

import pytest
from support.clients import client, finish, wait_line
from support.daemon import wait_until
from support.daemons import start_daemons
from support.moving import sessions
from support.ranks import groups, start, start_rank, told

pytestmark = pytest.mark.usefixtures("invariants")

# Each line is run on both ranks of a world of two; its error begins with the given text. N is the number of
# ranks, R the rank.
LINES = {
    "dist.init_process_group(rank=R, world_size=N)": "ValueError: trying to initialize the default process group twice",
    "dist.all_reduce(tt.ones(1), group=3)": "TypeError: group must be a ProcessGroup, not int",
    "dist.all_reduce([1.0])": "TypeError: tensor must be a Tensor, not list",
    "dist.all_reduce(tt.ones(1), op='sum')": "TypeError: op must be a ReduceOp, not str",
    "dist.all_reduce(tt.ones(2), dist.ReduceOp.BAND)": "RuntimeError: Cannot use ReduceOp.BAND with non-integral",
    "dist.all_reduce(tt.ones(2, dtype=tt.int64), dist.ReduceOp.AVG)":
        "NotImplementedError: all_reduce: is not defined for int64: an average is of floating point or complex",
    "dist.all_reduce(other)": "ValueError: tensor belongs to another session than the group",
    "dist.broadcast(tt.ones(1), src=N)": "ValueError: global rank 2 is not in the group",
    "dist.broadcast(tt.ones(1), src=-1)": "ValueError: global rank -1 is not in the group",
    "dist.broadcast(tt.ones(1))": "ValueError: ",
    "dist.broadcast(tt.ones(1), src=0, group_src=0)": "ValueError: ",
    "dist.reduce(tt.ones(1), dst=7)": "ValueError: global rank 7 is not in the group",
    "dist.scatter(tt.ones(1), [tt.ones(1)] * N, src=5)": "ValueError: ",
    "dist.all_gather([tt.ones(1)], tt.ones(1))": "ValueError: tensor_list must be a list of one element for each rank",
    "dist.all_gather(tt.ones(2), tt.ones(1))": "ValueError: tensor_list must be a list of one element for each rank",
    "dist.reduce_scatter(tt.ones(1), [tt.ones(1)] * 3)": "ValueError: input_list must be a list of one element",
    "dist.reduce_scatter(tt.ones(1), [tt.ones(1), tt.ones(2)])": "ValueError: input_list: tensors of one dtype and",
    "dist.all_to_all([tt.ones(1)] * N, [tt.ones(1)])": "ValueError: ",
    "dist.all_to_all_single(tt.ones(4), tt.ones(4), [1, 2], [1, 2])": "ValueError: ",
    "dist.all_to_all_single(tt.ones(4), tt.ones(4), [4], [4])": "ValueError: ",
    "dist.all_to_all_single(tt.ones(4), tt.ones(4), [-1, 5], [-1, 5])": "RuntimeError: all_to_all: the sizes are",
    "dist.all_to_all_single(tt.ones(3), tt.ones(3))": "ValueError: ",
    "dist.send(tt.ones(1), R)": "ValueError: Invalid destination rank",
    "dist.recv(tt.ones(1), R)": "ValueError: Invalid source rank",
    "dist.send(tt.ones(1), N)": "ValueError: global rank 2 is not in the group",
    "dist.new_group([])": "ValueError: new_group: ranks is empty",
    "dist.new_group([0, 0])": "ValueError: new_group: a rank occurs more than once in [0, 0]",
    "dist.new_group([0, N])": "ValueError: the new group's rank should be within the world_size set by",
    "dist.new_group([-1])": "ValueError: the new group's rank should be within the world_size set by",
    "dist.new_group(['0'])": "TypeError: ranks of a group must be integers, not str",
    "dist.new_group([0, 1], timeout=0)": "ValueError: timeout must be above 0 seconds, not 0",
    "dist.new_group([0, 1], timeout=-3)": "ValueError: timeout must be above 0 seconds, not -3",
    "dist.new_group([0, 1], timeout=float('nan'))": "ValueError: timeout must be above 0 seconds, not nan",
    "dist.new_group([0, 1], timeout=float('inf'))": "ValueError: timeout must be above 0 seconds, not inf",
    "dist.new_group([0, 1], timeout=1e300)": "nothing",  # a year is as good
    "dist.set_timeout(0)": "ValueError: timeout must be above 0 seconds, not 0",
    "dist.set_timeout(None)": "TypeError: timeout must be a timedelta or a number of seconds, not None",
    "dist.set_timeout(5, 'world')": "TypeError: group must be a ProcessGroup, not str",
    "dist.set_timeout(5, dist.GroupMember.NON_GROUP_MEMBER)": "ValueError: Invalid process group specified",
    "dist.get_global_rank(dist.group.WORLD, 2)": "ValueError: ",
    "dist.all_gather_object([None], 1)": "ValueError: ",
    "dist.broadcast_object_list([object()], src=R)": "TypeError: ",
    "dist.broadcast_object_list([object()], src=0)": "TypeError: ",
    "g = dist.new_group([0, 1]); dist.destroy_process_group(g); dist.all_reduce(tt.ones(1), group=g)":
        "ValueError: Invalid process group specified or has been destroyed",
    "g = dist.new_group([0, 1]); dist.destroy_process_group(g); dist.destroy_process_group(g)":
        "ValueError: Invalid process group specified or has been destroyed",
    "DDP(tt.nn.ReLU())": "RuntimeError: DistributedDataParallel is not needed",
    "DDP(tt.nn.Linear(2, 2).requires_grad_(False))": "RuntimeError: DistributedDataParallel is not needed",
    "DDP(tt.nn.Linear(2, 2), bucket_cap_mb=0)": "ValueError: bucket_cap_mb must be a positive number of MiB, not 0",
    "DDP(tt.nn.Linear(2, 2), bucket_cap_mb=float('nan'))": "ValueError: bucket_cap_mb must be a positive number of MiB",
    "DDP(DDP(tt.nn.Linear(2, 2)))": "RuntimeError: DistributedDataParallel of a module that is one, or has one in it",
    "DDP(3)": "TypeError: module must be a Module, not int",
    "DDP(tt.nn.Linear(2, 2 + R))": "RuntimeError: ",
}


def test_each_is_an_error_of_its_line(start_daemon):
    found = told(start(start_daemon().unix, 2, f"""
DDP = tt.nn.parallel.DistributedDataParallel
another, texts = tt.connect(os.environ["TT_TEST_ADDRESS"]), []
with another.as_current():
    other = tt.ones(1)
for line in {list(LINES)!r}:
    try:
        exec(line); texts.append("nothing")
    except Exception as e:
        texts.append(f"{{type(e).__name__}}: {{e}}")
    y = tt.ones(3)
    dist.all_reduce(y)
    if y.tolist() != [2.0] * 3:
        texts[-1] = "the world is over"
tell(texts)
""", timeout=60))
    wrong = [(rank, line, text) for rank, (texts,) in enumerate(found)
             for line, text in zip(LINES, texts, strict=True) if not text.startswith(LINES[line])]
    assert not wrong, "\n".join(map(str, wrong))


def test_a_session_is_in_a_limited_number_of_groups(start_daemon):
    """The group that is too many is refused at its line, and another one can be made after one was left."""
    found = told(start(start_daemon().unix, 2, """
made = []
try:
    for _ in range(70):
        made.append(dist.new_group([0, 1]))
    text = "nothing"
except RuntimeError as e:
    text = str(e)
dist.destroy_process_group(made.pop())
made.append(dist.new_group([0, 1]))
y = tt.ones(3)
dist.all_reduce(y, group=made[-1])
tell(len(made), text, y.tolist())
"""))
    for number, text, sums in found:
        assert number == 63 and sums == [2.0] * 3
        assert "the session is in 64 groups, which is the maximum; destroy_process_group(group) leaves one" in text


def test_a_rank_that_is_no_number(start_daemon):
    process = client("""
    os.environ.update(RANK="first", WORLD_SIZE="2")
    try:
        tt.distributed.init_process_group(init_method="env://")
    except ValueError as e:
        print(e)
    """, start_daemon().unix)
    assert finish(process)[1].strip() == "init_process_group: RANK must be an integer, not 'first'"


BEFORE = {
    "dist.get_rank()": "ValueError: Default process group has not been initialized",
    "dist.all_reduce(tt.ones(1))": "ValueError: Default process group has not been initialized",
    "dist.new_group([0])": "ValueError: Default process group has not been initialized",
    "dist.destroy_process_group()": "ValueError: Default process group has not been initialized",
    "tt.nn.parallel.DistributedDataParallel(tt.nn.Linear(1, 1))": "ValueError: Default process group has not been",
    "dist.init_process_group()": "ValueError: init_process_group: world_size is not given, and the",
    "dist.init_process_group(rank=0)": "ValueError: init_process_group: world_size is not given",
    "dist.init_process_group(rank=2, world_size=2)": "ValueError: init_process_group: rank 2 is not in a world of 2",
    "dist.init_process_group(rank=-2, world_size=2)": "ValueError: init_process_group: rank -2 is not in a world of 2",
    "dist.init_process_group(rank=0, world_size=0)": "ValueError: init_process_group: rank 0 is not in a world of 0",
    "dist.init_process_group('mpi', rank=0, world_size=2)": "ValueError: Invalid backend: 'mpi'",
    "dist.init_process_group(rank=0, world_size=2, timeout=0)": "ValueError: timeout must be above 0 seconds, not 0",
    "dist.init_process_group(rank=0, world_size=2, timeout=-1)": "ValueError: timeout must be above 0 seconds, not -1",
    "dist.init_process_group(rank=0, world_size=2, timeout=1, init_method='tcp://h:1')": "RankLostError: ",
    "dist.init_process_group(init_method='tcp://h:1?rank=x&world_size=2')": "ValueError: ",
    "dist.init_process_group(rank=0, world_size=2, init_method='mpi://')": "ValueError: init_process_group: init_",
    "dist.init_process_group(rank=0, world_size=20_000, init_method='tcp://h:1', timeout=1)": "RuntimeError: ",
}


def test_before_and_after_the_world(start_daemon):
    """Runs each line in a program that is in no world, and again after it has left a world."""
    process = client(f"""
    dist = tt.distributed
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    texts = []
    for _ in range(2):
        for line in {list(BEFORE)!r}:
            try:
                exec(line); texts.append("nothing")
            except Exception as e:
                texts.append(f"{{type(e).__name__}}: {{e}}")
            s.clear_errors()
        dist.init_process_group(rank=0, world_size=1, init_method="tcp://test:1")
        dist.destroy_process_group()
    import json
    print(json.dumps(texts))
    """, start_daemon().unix)
    status, out, err = finish(process)
    assert status == 0, err
    texts = json.loads(out)
    wrong = [(line, text) for line, text in zip([*BEFORE, *BEFORE], texts, strict=True)
             if not text.startswith(BEFORE[line])]
    assert not wrong, "\n".join(map(str, wrong))


OTHER_SIZE = "the numbers of ranks differ"


def test_worlds_of_other_sizes(start_daemon):
    """The program that waits and the program that comes get the same error at once, which names both."""
    daemon = start_daemon()
    first = start_rank(daemon.unix, 0, 2, "pass")
    wait_until(lambda: groups(daemon), what="rank 0 joins")
    for process in (first, start_rank(daemon.unix, 1, 3, "pass")):
        status, _, err = finish(process)
        assert status == 1 and "RankLostError" in err, err
        assert "rank 0 of 2 (" in err and "has joined, and later rank 1 of 3 (" in err and OTHER_SIZE in err, err
    assert told(start(daemon.unix, 3, "tell(R)")) == [[0], [1], [2]]  # the name can be used again


def test_a_world_that_runs_is_not_disturbed(start_daemon, tmp_path):
    daemon = start_daemon()
    go = tmp_path / "go"
    world = start(daemon.unix, 2, f"""
print("runs", flush=True)
while not os.path.exists({str(go)!r}):
    time.sleep(0.05)
x = tt.ones(2); dist.all_reduce(x)
tell(x.tolist())
""")
    for process in world:
        wait_line(process, "runs")
    status, _, err = finish(start_rank(daemon.unix, 2, 3, "pass"))
    assert status == 1 and "rank 0 of 2 (" in err and OTHER_SIZE in err, err
    go.touch()
    assert told(world) == [[[2.0, 2.0]]] * 2


@pytest.mark.parametrize("ranks", (1, 2), ids=("waits", "runs"))
def test_a_world_whose_programs_are_killed_gives_way(start_daemon, ranks):
    """Their sessions are kept for their leases, but nobody would hear an error."""
    daemon = start_daemon("--lease", "600", "--rank-grace", "600")
    world = [start_rank(daemon.unix, rank, 2, "print('runs', flush=True); time.sleep(600)") for rank in range(ranks)]
    if ranks == 2:
        for process in world:
            wait_line(process, "runs")
    wait_until(lambda: groups(daemon), what="the ranks join")
    for process in world:
        process.kill()
        finish(process)
    wait_until(lambda: all(each["detached_seconds"] > 0 for each in sessions(daemon)), what="all are gone")
    assert told(start(daemon.unix, 3, "x = tt.ones(2); dist.all_reduce(x); tell(x.tolist())")) == [[[3.0, 3.0]]] * 3


@pytest.mark.parametrize("runs", (False, True), ids=("waits", "runs"))
def test_worlds_of_other_sizes_on_two_daemons(start_daemon, tmp_path, runs):
    """The later program hears of the other size at once, also from a daemon whose group runs."""
    first, second = start_daemons(start_daemon, 2)
    go = tmp_path / "go"
    ranks = 2 if runs else 1
    world = [start_rank(first.unix, rank, 2, f"""
print("runs", flush=True)
while not os.path.exists({str(go)!r}):
    time.sleep(0.05)
dist.barrier()
tell(R)
""") for rank in range(ranks)]
    for process in world if runs else ():
        wait_line(process, "runs")
    wait_until(lambda: len((groups(first) or [{"members": []}])[0]["members"]) == ranks, what="the ranks join")
    status, _, err = finish(start_rank(second.unix, 1, 3, "pass"))
    assert status == 1 and "rank 1 of 3 (" in err and "of 2 (" in err and OTHER_SIZE in err, err
    go.touch()
    if runs:
        assert told(world) == [[0], [1]]
    else:
        status, _, err = finish(world[0])
        assert status == 1 and "rank 1 of 3 (" in err and "rank 0 of 2 (" in err and OTHER_SIZE in err, err


def test_a_rank_without_a_token(start_daemon):
    daemon = start_daemon()
    status, _, err = finish(start_rank(daemon.tcp, 0, 2, "pass"))
    assert status == 1 and "token" in err, err
