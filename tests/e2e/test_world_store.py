"""init_process_group with a store or an address, the world's store, and groups of several at once."""

import os

import pytest
import teletensor.distributed as dist
from support.clients import client
from support.ranks import told

BEGIN = """
    import json
    dist = tt.distributed
    R, N = {rank}, {ranks}
    def tell(*values):
        print(json.dumps(values), flush=True)
"""


def start(address, ranks, code):
    """A process for each rank, which opens the world itself."""
    lines = "\n".join("    " + line for line in code.strip().splitlines())
    return [client(BEGIN.format(rank=rank, ranks=ranks) + lines, address) for rank in range(ranks)]


def test_a_store_names_the_world(start_daemon, tmp_path):
    """Two worlds with the same ranks, by two files; the ranks of a world see only the stored keys of that
    world."""
    daemon = start_daemon()
    code = """
dist.init_process_group("gloo", store=dist.FileStore({path!r}, N), rank=R, world_size=N)
store = dist.distributed_c10d._get_default_store()
store.set(f"from {{R}}", str(R))
found = store.multi_get([f"from {{rank}}" for rank in range(N)])
x = tt.tensor([float(R + {more})])
dist.all_reduce(x)
tell(x.tolist(), [value.decode() for value in found])
dist.destroy_process_group()
"""
    worlds = [start(daemon.unix, 2, code.format(path=str(tmp_path / f"store{more}"), more=more)) for more in (0, 10)]
    assert [told(world) for world in worlds] == [[[[1.0], ["0", "1"]]] * 2, [[[21.0], ["0", "1"]]] * 2]


@pytest.mark.parametrize("method", ("tcp://127.0.0.1:4711", "file://{folder}/world", "env://"))
def test_the_store_of_a_world(start_daemon, tmp_path, monkeypatch, method):
    """The world's store exists without a given store, for two worlds in turn, and the second world finds no
    keys of the first."""
    daemon = start_daemon()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "4712")
    code = f"""
for turn in range(2):
    dist.init_process_group("gloo", {method.format(folder=tmp_path)!r}, rank=R, world_size=N)
    store = dist.distributed_c10d._get_default_store()
    if R == 0: store.set("k", str(turn))
    assert store.get("k") == str(turn).encode()
    dist.barrier()
    dist.destroy_process_group()
tell(R)
"""
    assert told(start(daemon.unix, 2, code)) == [[0], [1]]


def test_a_world_of_one(tt):
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.distributed_c10d._get_default_store().set("k", "v")
        assert dist.distributed_c10d._get_default_store().get("k") == b"v"
        assert dist.distributed_c10d._get_default_group() is dist.group.WORLD
        own, groups = dist.new_subgroups(1)
        assert own is groups[0] and own.size() == 1
        assert dist.split_group(split_ranks=[[0]]).size() == 1
    finally:
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="has not been initialized"):
        dist.distributed_c10d._get_default_store()


@pytest.mark.parametrize("arguments, said", (
    ({"store": dist.HashStore(), "init_method": "env://"}, "Cannot specify both init_method and store"),
    ({"init_method": "mpi://"}, "begins with tcp://, file:// or env://, not 'mpi://'"),
))
def test_bad_arguments(tt, arguments, said):
    with pytest.raises(ValueError, match=said):
        dist.init_process_group(rank=0, world_size=1, **arguments)
    with pytest.raises(TypeError, match="store must be a Store, not dict"):
        dist.init_process_group(rank=0, world_size=1, store={})


def test_groups_of_several_at_once(start_daemon):
    daemon = start_daemon()
    code = """
dist.init_process_group("gloo", "tcp://host:1", rank=R, world_size=N)
def summed(group):
    x = tt.tensor([float(R)])
    if group is not None: dist.all_reduce(x, group=group)
    return x.item()
own, groups = dist.new_subgroups(2)
pairs = summed(own)
own, _ = dist.new_subgroups_by_enumeration([[0, 3], [1]])
some = summed(own)
split = dist.split_group(split_ranks=[[1, 3], [2, 0]])
inner = dist.split_group(split, [[1], [0]])
outside = dist.split_group(split_ranks=[[3, 1, 2]], backend="gloo") == dist.GroupMember.NON_GROUP_MEMBER
errors = []
for call in (lambda: dist.new_subgroups(3), lambda: dist.new_subgroups(5), lambda: dist.new_subgroups(0),
             lambda: dist.new_subgroups_by_enumeration([]), lambda: dist.new_subgroups_by_enumeration([[0], [0]]),
             lambda: dist.split_group(), lambda: dist.split_group(split_ranks=[[4]]),
             lambda: dist.split_group(split_ranks=[[0], [0]]), lambda: dist.split_group(split_ranks=[[0], []]),
             lambda: dist.split_group(split_ranks=[[0]], backend="nccl")):
    try: call()
    except ValueError as error: errors.append(str(error)[:20])
inner = [inner.size(), dist.get_process_group_ranks(inner)]
tell(len(groups), pairs, some, summed(split), dist.get_rank(split), inner, outside, len(errors))
"""
    assert told(start(daemon.unix, 4, code)) == [
        [2, 1.0, 3.0, 2.0, 1, [1, [0]], True, 10], [2, 1.0, 1.0, 4.0, 0, [1, [1]], False, 10],
        [2, 5.0, 2.0, 2.0, 0, [1, [2]], False, 10], [2, 5.0, 3.0, 4.0, 1, [1, [3]], False, 10]]


def test_the_rank_on_a_machine(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert dist.get_node_local_rank() == 3 == dist.get_node_local_rank(1)
    monkeypatch.delenv("LOCAL_RANK")
    assert dist.get_node_local_rank(1) == 1 and "LOCAL_RANK" not in os.environ
    with pytest.raises(RuntimeError, match="LOCAL_RANK is not in the environment"):
        dist.get_node_local_rank()
