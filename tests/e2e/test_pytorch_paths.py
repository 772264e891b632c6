"""PyTorch's module paths that are loaded at their first use, and the functions of the modules below them."""

import hashlib
import importlib
import importlib.util
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from teletensor._names import paths as _paths


def run(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                          env=environment or None)


def test_the_package_imports_none_of_them():
    done = run("""
import sys, teletensor as tt
from teletensor._names import paths as _paths
early = [path for path in (*_paths.FILES, *_paths.TABLE) if f"teletensor.{path}" in sys.modules]
assert not early, early
import teletensor.distributions.normal, teletensor.utils.data._utils.collate
from teletensor.optim.adamw import AdamW
assert AdamW is tt.optim.AdamW and tt.distributions.normal.Normal is tt.distributions.Normal
assert tt.nn.parallel.DataParallel is tt.nn.DataParallel and not hasattr(tt.distributions.normal, "Beta")
assert tt.utils.data._utils.collate.default_collate is tt.utils.data.default_collate
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted([*_paths.FILES, *_paths.TABLE]))
def test_a_path_hides_no_name(path):
    """The import system sets a module as an attribute of its parent."""
    parent, _, name = path.rpartition(".")
    place = importlib.import_module(f"teletensor.{parent}" if parent else "teletensor")
    value = vars(place).get(name)
    module = importlib.import_module(f"teletensor.{path}")
    called = callable(module) and vars(module)[name]  # a module that calls the function of its name
    assert value is None or value is module or value is called


@pytest.mark.parametrize("statement", ["import teletensor.nothing", "import teletensor.distributions.nothing",
                                       "from teletensor.distributions.normal import Beta",
                                       "import teletensor.distributions.normal.nothing"])
def test_other_paths_are_not_there(statement):
    with pytest.raises(ImportError, match="nothing|Beta"):
        exec(statement)


@pytest.mark.parametrize("path", ["fx", "package", "library", "ao", "utils.cpp_extension",
                                  "backends.opt_einsum", "nothing", "distributions.normal.nothing"])
def test_an_import_names_the_page(path):
    name = f"teletensor.{path}"
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}': docs/names.md lists") as refused:
        importlib.import_module(name)
    assert refused.value.name == name


def test_an_import_below_as_torch_names_the_page():
    """Runs in a separate process, because with `as_torch` all texts of types begin with "torch."."""
    done = subprocess.run([sys.executable, "-c", "import teletensor.as_torch.fx"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "No module named 'teletensor.as_torch.fx': docs/names.md lists" in done.stderr


# Runs in a separate process. {0} is the prefix of the first imports, {1} that of the second ones.
EVERY_PATH = """
import importlib, importlib.util, pathlib, sys
import teletensor as tt, teletensor.as_torch as torch
from teletensor._names import paths

def files():
    skipped = ("torch", "integrations", "_conformance", "as_torch", "onnx", "cli")  # need more than the client
    for file in pathlib.Path(tt.__path__[0]).rglob("*.py"):
        parts = file.relative_to(tt.__path__[0]).with_suffix("").parts
        if parts[0].split(".")[0] not in skipped and parts[-1] != "__main__":
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

def imported(prefix):
    return {{name: importlib.import_module(f"teletensor.{{prefix}}{{name}}") for name in names}}

names = sorted({{*paths.TABLE, *paths.FILES}} - {{"onnx"}})
names += sorted(set(files()) - {{*names, "", "version"}})
first, second = imported("{0}"), imported("{1}")
for name in names:
    assert first[name] is second[name] and first[name].__name__ == "teletensor." + name, name
ours = [(name, module) for name, module in sys.modules.items() if name.split(".")[0] == "teletensor"]
seen = {{}}
for name, module in ours:
    file = getattr(module, "__file__", None)
    assert file is None or seen.setdefault(file, module) is module, name
assert len(names) > 250 and "nn.functional" in names
import teletensor.as_torch.nn.functional as F
from teletensor.as_torch.utils.data import DataLoader
from teletensor.as_torch.optim.lr_scheduler import StepLR
assert F is tt.nn.functional is torch.nn.functional and DataLoader is tt.utils.data.DataLoader
assert StepLR is tt.optim.lr_scheduler.StepLR
assert importlib.util.find_spec("teletensor.as_torch.nothing") is None
"""


@pytest.mark.parametrize("prefixes", [("as_torch.", ""), ("", "as_torch.")])
def test_as_torch_has_no_second_copy_of_a_module(prefixes):
    done = run(EVERY_PATH.format(*prefixes))
    assert done.returncode == 0, done.stderr


def test_whether_there_is_a_module_can_be_asked():
    assert importlib.util.find_spec("teletensor.fx") is None and importlib.util.find_spec("teletensor.xpu")
    with pytest.raises(ImportError, match="No module named 'teletensor._nothing'$"):
        importlib.import_module("teletensor._nothing")


@pytest.fixture
def world(tt, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield tt.distributed
    if tt.distributed.is_initialized():
        tt.distributed.destroy_process_group()


def test_a_world_that_cannot_be(world, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ValueError, match="rank is not given, and the environment variable RANK expected"):
        world.init_process_group()
    with pytest.raises(ValueError, match="rank 1 is not in a world of 1"):
        world.init_process_group(rank=1)
    with pytest.raises(ValueError, match="Invalid backend: 'carrier'"):
        world.init_process_group("carrier", rank=0)
    assert not world.is_initialized()
    monkeypatch.setenv("RANK", "0")
    world.init_process_group("cpu:gloo")
    assert world.get_world_size() == 1 and world.group.WORLD.size() == 1


def test_collectives_refuse_what_does_not_fit(tt, world):
    world.init_process_group(rank=0, world_size=1)
    x = tt.ones(2, 3)
    for call, text in (
        (lambda: world.all_gather([x, x], x), "tensor_list must be a list of one element .* it is 2"),
        (lambda: world.all_gather([tt.ones(3)], x), r"tensor_list\[0\] of \(3,\) does not take tensor of \(2, 3\)"),
        (lambda: world.all_gather([x.long()], x), "is teletensor.int64, tensor teletensor.float32"),
        (lambda: world.gather(x), "gather_list must be a list .* it is NoneType"),
        (lambda: world.broadcast(x, 1), "global rank 1 is not in the group of ranks"),
        (lambda: world.recv(x, 0), "Invalid source rank"),
        (lambda: world.recv(x), "no other rank"),
        (lambda: world.all_to_all_single(x, x, [1, 1]), r"\[1, 1\] do not split 2 rows"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(TypeError, match="tensor must be a Tensor, not list"):
        world.all_reduce([1])
    with pytest.raises(RuntimeError, match="non-integral dtype"):
        world.all_reduce(x, world.ReduceOp.BAND)
    out = tt.zeros(3, 2)
    world.reduce_scatter_tensor(out, x * 2)
    assert out.tolist() == [[2, 2]] * 3
    with pytest.raises(ValueError, match="a group has at least one rank"):
        world.new_group([])
    assert world.get_rank(world.GroupMember.NON_GROUP_MEMBER) == -1


def test_samplers_of_several_processes(tt):
    parts = [list(tt.utils.data.DistributedSampler(range(10), 3, rank, seed=5)) for rank in range(3)]
    assert sorted(set(sum(parts, []))) == list(range(10)) and len({len(part) for part in parts}) == 1
    sampler = tt.utils.data.DistributedSampler(range(100), 1, 0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first and sorted(sampler) == list(range(100))
    assert not list(tt.utils.data.DistributedSampler([], 2, 1))


class Files(BaseHTTPRequestHandler):
    contents = b""

    def do_GET(self):
        self.send_response(200 if self.path.startswith("/good") else 404)
        self.end_headers()
        self.wfile.write(self.contents)

    def log_message(self, *args):
        pass


@pytest.fixture
def site(tmp_path, tt):
    tt.save({"w": tt.arange(3.0)}, tmp_path / "w.st")
    Files.contents = (tmp_path / "w.st").read_bytes()
    server = HTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_weights_by_url(tt, site, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    assert tt.hub.get_dir() == str(tmp_path / "home/hub")
    digest = hashlib.sha256(Files.contents).hexdigest()[:8]
    loaded = tt.hub.load_state_dict_from_url(f"{site}/good-{digest}.st?x=1", check_hash=True)
    assert loaded["w"].tolist() == [0, 1, 2] and "bytes in" in capsys.readouterr().err
    there = tmp_path / f"home/hub/checkpoints/good-{digest}.st"
    assert there.read_bytes() == Files.contents
    Files.contents = b"something else"
    again = tt.utils.model_zoo.load_url(f"{site}/good-{digest}.st")  # from the file
    assert again["w"].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="invalid hash value"):
        tt.hub.load_state_dict_from_url(f"{site}/good-00000000.st", check_hash=True)
    with pytest.raises(OSError, match="404"):
        tt.hub.download_url_to_file(f"{site}/bad", str(tmp_path / "bad"))
    assert [file.name for file in there.parent.iterdir()] == [there.name] and not (tmp_path / "bad").exists()


def test_models_of_a_folder(tt, tmp_path):
    (tmp_path / "hubconf.py").write_text(
        "import teletensor as torch\nfrom parts import size\ndependencies = ['math']\n"
        "def net(out, bias=True):\n    'A layer.'\n    return torch.nn.Linear(size, out, bias)\n_hidden = 3\n")
    (tmp_path / "parts.py").write_text("size = 4\n")
    assert tt.hub.load(str(tmp_path), "net", 2, source="local", bias=False).weight.shape == (2, 4)
    assert tt.hub.list(str(tmp_path), source="local") == ["net"]
    assert tt.hub.help(str(tmp_path), "net", source="local") == "A layer."
    with pytest.raises(RuntimeError, match="Cannot find callable other"):
        tt.hub.load(str(tmp_path), "other", source="local")
    with pytest.raises(FileNotFoundError, match=r"no file .*hubconf\.py"):
        tt.hub.load(str(tmp_path / "nowhere"), "net", source="local")
    with pytest.raises(NotImplementedError, match='use source="local"'):
        tt.hub.load("pytorch/vision", "resnet18")
    (tmp_path / "hubconf.py").write_text("dependencies = ['no_such_package']\ndef net(): pass\n")
    with pytest.raises(RuntimeError, match="Missing dependencies: no_such_package"):
        tt.hub.load(str(tmp_path), "net", source="local")


SPAWN = """
import os, sys, time
import teletensor.multiprocessing as mp

def work(i, folder, how):
    if how == "raise" and i == 1:
        raise ValueError("the first one")
    if how == "exit" and i == 0:
        os._exit(3)
    if how == "kill" and i == 0:
        os.kill(os.getpid(), 9)
    if how != "well":
        time.sleep(100)
    open(f"{folder}/{i}", "w").close()

if __name__ == "__main__":
    try:
        mp.spawn(work, args=sys.argv[1:], nprocs=2)
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        print(type(error).__name__, error.error_index, error)
"""


@pytest.mark.parametrize(("how", "text"), [
    ("well", ""), ("raise", "ProcessRaisedException 1 \n\n-- Process 1 terminated"),
    ("exit", "ProcessExitedException 0 process 0 terminated with exit code 3"),
    ("kill", "terminated with signal SIGKILL")])
def test_processes(tmp_path, how, text):
    (tmp_path / "program.py").write_text(SPAWN)
    (tmp_path / "out").mkdir()
    done = subprocess.run([sys.executable, tmp_path / "program.py", tmp_path / "out", how], capture_output=True,
                          text=True, timeout=90, check=True)
    assert text in done.stdout and (how != "raise" or "ValueError: the first one" in done.stdout), done.stderr
    assert len(list((tmp_path / "out").iterdir())) == (2 if how == "well" else 0)


def test_what_a_capture_asks(tt):
    seen = []

    def f(x):
        seen.append((tt.compiler.is_compiling(), tt.jit.is_tracing(), tt.jit.is_scripting()))
        return x * 2

    x = tt.ones(2)
    f(x)
    compiled = tt.compile(f)
    compiled(x)
    compiled(x)
    tt.jit.trace(f, (x,))(x)
    assert seen == [(False, False, False), (True, False, False), (False, True, False)]
    tt.compiler.reset()
    compiled(x)
    assert seen[3:] == [(True, False, False)]


def test_disabled_functions(tt):
    @tt.compiler.disable(reason="it prints")
    def shown(x):
        return x + 1

    assert shown(tt.ones(1)).item() == 2 and tt._dynamo.disable(shown).__name__ == "shown"
    with pytest.raises(RuntimeError, match=r"shown is called in a captured function.*\(compiler\.disable: it prints\)"):
        tt.compile(lambda x: shown(x) * 2)(tt.ones(1))
    assert tt.ones(2).prod().item() == 1  # nothing is captured any more
    with pytest.raises(RuntimeError, match="graph_break is called in a captured function"):
        tt.compile(lambda x: (x, tt._dynamo.graph_break()))(tt.ones(1))
    tt._dynamo.graph_break()
    assert tt._dynamo.optimize("inductor", nopython=True)(lambda x: x + 1)(tt.ones(1)).item() == 2


@pytest.fixture
def marked(tt, tmp_path, monkeypatch):
    (tmp_path / "marked.py").write_text("""
import teletensor as tt

@tt.jit.ignore
def ignored(x):
    return x + 1

@tt.jit.unused
def unused(x):
    return x + 2

def either(x):
    if tt.jit.is_scripting():
        return x * 3
    return unused(ignored(x))

def calls(x):
    return ignored(x)

@tt.jit.script_if_tracing
def count(x):
    n = 0
    while x > 1:
        x = x / 2
        n += 1
    return x * 0 + n

class Net(tt.nn.Module):
    scale: tt.jit.Final[int] = 3
    def forward(self, x):
        return self.hidden(x) if not tt.jit.is_scripting() else x * self.scale
    @tt.jit.unused
    def hidden(self, x):
        return x
""")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("marked", None)
    return importlib.import_module("marked")


def test_marks_of_scripted_functions(tt, marked):
    x = tt.tensor(2.0)
    assert marked.either(x).item() == 5 and tt.jit.script(marked.either)(x).item() == 6
    with pytest.raises(tt.jit.ScriptError, match=r"marked\.py:\d+: script: ignored\(\) is marked jit\.ignore"):
        tt.jit.script(marked.calls)(x)
    net = tt.jit.script(marked.Net())
    assert net(x).item() == 6 and isinstance(net, tt.jit.ScriptModule) and not isinstance(net, tt.jit.ScriptFunction)
    assert isinstance(tt.jit.script(marked.either), tt.jit.ScriptFunction)
    traced = tt.jit.trace(lambda v: marked.count(v), (tt.tensor(8.0),))
    assert [traced(tt.tensor(v)).item() for v in (8.0, 1.0, 5.0)] == [3, 0, 3]
    assert marked.count(tt.tensor(4.0)).item() == 2


def test_older_mixed_precision(tt):
    from teletensor.cuda.amp import GradScaler, autocast

    assert autocast().device == "cuda" and autocast(False).fast_dtype == tt.float16
    assert not GradScaler(enabled=False).is_enabled() and tt.cuda.amp.custom_fwd.keywords == {"device_type": "cuda"}


def test_types_name_their_device(tt):
    assert not isinstance(tt.ones(1), tt.cuda.FloatTensor) and isinstance(tt.ones(1), tt.FloatTensor)
    with pytest.raises(RuntimeError, match="no cuda|device|driver"):
        tt.cuda.FloatTensor([1.0])
    with pytest.raises(ValueError, match="invalid type: 'torch.NoTensor'"):
        tt.ones(1).type("torch.NoTensor")
