"""Names of torch.distributed that are more than an alias: functional collectives, several collectives at once, new
tensors in parts, meshes of groups, and the folder of a checkpoint as an object."""

import pytest
from support.clients import finish
from support.ranks import start, start_rank, told

pytestmark = pytest.mark.usefixtures("invariants")


def test_functional_collectives(start_daemon):
    found = told(start(start_daemon().unix, 2, """
from teletensor.distributed import _functional_collectives as f
mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("all",))
x = tt.arange(4.0).reshape(2, 2) + 10 * R
y = (tt.ones(2, 2) * (R + 1)).requires_grad_()
rows = []
for group in (None, dist.group.WORLD, mesh, (mesh, 0), (mesh, "all")):
    rows.append([f.wait_tensor(f.all_reduce(x, "sum", group)).tolist(), f.all_reduce(x, "max", group).tolist(),
                 f.all_gather_tensor(x, 1, group).tolist(), f.reduce_scatter_tensor(x, "avg", 1, group).tolist(),
                 f.all_to_all_single(x, None, None, group).tolist(), f.broadcast(x, 1, group).tolist(),
                 f.all_to_all_single(x, [1, 1], [1, 1], group).tolist()])
assert all(row == rows[0] for row in rows)
assert x.tolist() == (tt.arange(4.0).reshape(2, 2) + 10 * R).tolist()
(f.reduce_scatter_tensor_autograd(y, "sum", 0, mesh) * (R + 3)).sum().backward()
(f.all_gather_tensor_autograd(y, 0, mesh) ** 2).sum().backward()
texts = []
for line in ('f.all_reduce(x, "mean", None)', 'f.reduce_scatter_tensor(tt.ones(3), "sum", 0, None)'):
    try:
        eval(line)
    except ValueError as e:
        texts.append(str(e))
tell(rows[0], y.grad.tolist(), texts)
"""))
    for rank, (rows, gradient, texts) in enumerate(found):
        whole = [[0.0, 1.0], [2.0, 3.0]], [[10.0, 11.0], [12.0, 13.0]]
        total, largest, wide, part, swapped, last, again = rows
        assert total == [[10.0, 12.0], [14.0, 16.0]] and largest == last == whole[1]
        assert wide == [[0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0]]
        assert part == ([[5.0], [7.0]], [[6.0], [8.0]])[rank]
        assert swapped == again == [whole[0][rank], whole[1][rank]]
        # Row i is weighted by 3 + i on rank i; the squares of both ranks' gathers add up.
        assert gradient == [[3.0 + 4 * (rank + 1)] * 2, [4.0 + 4 * (rank + 1)] * 2]
        assert "a reduction is one of sum, avg" in texts[0] and "must be a multiple of group_size" in texts[1]


def test_several_collectives_at_once(start_daemon):
    found = told(start(start_daemon().unix, 2, """
c10d = dist.distributed_c10d
a, b = tt.ones(2) * (R + 1), tt.ones(3) * R
work = dist.all_reduce_coalesced([a, b], async_op=True)
work.wait()
outputs = [[tt.zeros(2), tt.zeros(1)] for _ in range(2)]
dist.all_gather_coalesced(outputs, [tt.ones(2) * R, tt.ones(1) * (5 + R)])
with c10d._coalescing_manager(async_ops=True) as several:
    several.append(dist.all_reduce(a, dist.ReduceOp.RedOpType.MAX, async_op=True))
    several.append(c10d.all_reduce(b, dist.reduce_op.SUM, async_op=True))
several.wait()
assert dist.group.WORLD.group_name and dist.Backend(dist.get_backend()) == dist.Backend.GLOO == "gloo"
assert dist.Backend("NCCL") == dist.Backend.NCCL and dist.default_pg_timeout.total_seconds() == 1800
assert dist.get_backend_config() == "cpu:gloo,cuda:gloo" and dist.get_default_backend_for_device("cpu") == "gloo"
assert not dist.supports_complex(dist.ReduceOp.MAX) and dist.supports_complex(dist.ReduceOp.SUM)
dist.set_debug_level(dist.DebugLevel.DETAIL)
assert dist.get_debug_level() is dist.DebugLevel.DETAIL
import os
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "info"
dist.set_debug_level_from_env()
assert dist.get_debug_level() is dist.DebugLevel.INFO
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "loud"
texts = []
for line in ("dist.set_debug_level_from_env()", "dist.Backend(3)", "dist.get_default_backend_for_device('tpu')"):
    try:
        eval(line)
    except Exception as e:
        texts.append(f"{type(e).__name__}: {e}")
tell(a.tolist(), b.tolist(), [[x.tolist() for x in each] for each in outputs], texts)
"""))
    for a, b, outputs, texts in found:
        assert a == [3.0] * 2 and b == [2.0] * 3
        assert outputs == [[[0.0, 0.0], [5.0]], [[1.0, 1.0], [6.0]]]
        assert texts[0].startswith("RuntimeError: The value of TORCH_DISTRIBUTED_DEBUG must be one of OFF, INFO or")
        assert texts[1].startswith("TypeError: Backend constructor") and texts[2].startswith("ValueError: Default")


def test_meshes_of_groups_and_flat_meshes(start_daemon):
    found = told(start(start_daemon().unix, 4, """
mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
flat = mesh["dp", "tp"]._flatten("world")
def total(group):
    x = tt.ones(1) * 10 ** R
    dist.all_reduce(x, group=group)
    return int(x.item())
sums = [total(flat.get_group()), total(mesh["world"].get_group())]
cube = dist.init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("a", "b", "c"))
sums += [total(cube["b", "c"]._flatten().get_group()), total(cube["b_c"].get_group())]
sums += [total(cube["a", "b"]._flatten("ab").get_group())]
made = dist.DeviceMesh.from_group(mesh.get_group("tp"), "cpu", mesh_dim_names=("tp",))
whole = dist.DeviceMesh.from_group(mesh.get_all_groups(), "cpu", mesh.mesh, mesh_dim_names=("dp", "tp"))
assert made == mesh["tp"] and whole == mesh and mesh["tp"]._flatten() == mesh["tp"]
sums += [total(made.get_group()), total(whole.get_group("dp"))]
texts = []
for line in ("mesh._flatten('dp')", "dist.DeviceMesh.from_group(mesh.get_all_groups(), 'cpu')",
             "dist.DeviceMesh.from_group(mesh.get_group('tp'), 'cpu', [[0, 1], [2, 3]])",
             "dist.DeviceMesh.from_group(mesh.get_group('tp'), 'cpu', [0, 3] if R in (0, 3) else [1, 2])"):
    try:
        eval(line)
        texts.append("nothing")
    except ValueError as e:
        texts.append(str(e))
tell(sums, texts)
"""))
    for rank, (sums, texts) in enumerate(found):
        row, column = (11, 1100)[rank // 2], (101, 1010)[rank % 2]
        assert sums == [1111, 1111, row, row, column, row, column]
        assert "cannot be the name of a flattened" in texts[0] and "Must pass mesh" in texts[1]
        assert "1 groups for 2 dimensions" in texts[2] and "has the ranks" in texts[3]


def test_new_tensors_in_parts(start_daemon):
    found = told(start(start_daemon().unix, 2, """
from teletensor.distributed import tensor as dt
mesh = dist.init_device_mesh("cpu", (2,))
rows = []
tt.manual_seed(R)
for made in (dt.zeros(3, 2, device_mesh=mesh, placements=[dt.Shard(0)]), dt.ones((3, 2), dtype=tt.int32),
             dt.full([2, 2], 7.5, device_mesh=mesh, placements=[dt.Shard(1)], requires_grad=True),
             dt.rand(4, device_mesh=mesh, placements=[dt.Shard(0)]), dt.randn(4), dt.empty(2, 5)):
    rows.append([made.full_tensor().tolist() if len(rows) < 5 else 0, list(made.to_local().shape), str(made.dtype),
                 made.requires_grad])
tell(rows)
"""))
    (first,), (second,) = found
    assert [row[0] for row in first] == [row[0] for row in second]
    assert [row[1] for row in first] == [[2, 2], [3, 2], [2, 1], [2], [4], [2, 5]]
    assert first[0][0] == [[0.0] * 2] * 3 and first[1][0] == [[1, 1]] * 3 and first[2][0] == [[7.5] * 2] * 2
    assert [row[2:] for row in first[1:3]] == [["teletensor.int32", False], ["teletensor.float32", True]]


def test_the_folder_of_a_checkpoint_as_an_object(start_daemon, tmp_path):
    told(start(start_daemon().unix, 2, f"folder = {str(tmp_path)!r}\n" + """
from teletensor.distributed import checkpoint
from teletensor.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
checkpoint.save({"x": tt.ones(2)}, storage_writer=FileSystemWriter(folder))
state = {"x": tt.zeros(2)}
checkpoint.load(state, storage_reader=FileSystemReader(folder))
assert state["x"].tolist() == [1.0, 1.0]
try:
    checkpoint.load(state, storage_reader=folder)
    raise AssertionError
except TypeError as e:
    assert "a storage is a FileSystemWriter or a FileSystemReader, not a str" in str(e)
tell(True)
"""))
    assert (tmp_path / "index.json").exists()


def test_the_error_of_ranks_that_have_ended_has_pytorchs_name(start_daemon):
    daemon = start_daemon()
    waits = start_rank(daemon.unix, 0, 2, """
x = tt.ones(2)
try:
    dist.all_reduce(x)
    x.tolist()
    tell("nothing")
except dist.DistBackendError as e:
    tell(type(e).__name__)
""")
    ends = start_rank(daemon.unix, 1, 2, "import os; os._exit(0)")
    assert finish(ends)[0] == 0
    status, out, err = finish(waits)
    assert status == 0 and out.splitlines()[-1] == '["RankLostError"]', err


def test_a_debugger_on_one_rank(start_daemon):
    code = """
import io, sys
sys.stdin = io.StringIO("p R + 40\\nc\\n")
dist.breakpoint(rank=1, skip=1)  # ignored
dist.breakpoint(rank=1, skip=1)
print("after")
"""
    outputs = [finish(each) for each in start(start_daemon().unix, 2, code)]
    assert [status for status, _, _ in outputs] == [0, 0], outputs
    assert "41" not in outputs[0][1] and "41" in outputs[1][1]
    assert all(out.rstrip().endswith("after") for _, out, _ in outputs)
