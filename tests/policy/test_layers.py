"""Checks which folder may include which headers and modules: one table, compared with every #include and
every import."""

import ast
import re
import sys

from repository import ROOT, files, relative

STD = "std"  # headers of the C++ standard library, whose names have no dot and no slash
POSIX = "posix"  # <name.h> and <sys/name.h>
CLIENT = [STD]
ABSL = [STD, POSIX, "absl/"]

# The headers of the engine and of Debian's packages that a file of the daemon may include.
ENGINE = ["engine/engine.h", "engine/core/", "engine/program/", "engine/ops/op.h",
          "engine/memory/block_file.h", "engine/runtime/groups/fabric.h", "engine/collective/link.h"]
DAEMON = [*ABSL, "grpc/", "grpcpp/", "google/protobuf/", "spdlog/", "CLI/", "toml++/", "nlohmann/",
          "httplib.h", "prometheus/", "openssl/", "sqlite3.h"]
# folder of server/ -> the folders of server/ that it may include; server/ itself may include all.
ROOMS = {
    "base": [],
    "access": ["base"],
    "session": ["base", "access"],
    "state": ["base", "access", "session"],
    "stream": ["base", "access", "session"],
    "rendezvous": ["base", "access", "session"],
    "peer": ["base", "access", "session", "state"],
    "admin": ["base", "access", "session", "state", "rendezvous", "peer"],
    "net": ["base", "access", "session", "stream", "rendezvous", "peer", "admin"],
}

# folder -> (project headers that it may include, by prefix; other headers that it may include). The longest
# matching folder applies. A folder may always include its own headers.
LAYERS = {
    "engine/core": ([], CLIENT),
    "engine/core/os": (["engine/core/"], [STD, "unistd.h"]),
    "engine/program": (["engine/core/"], CLIENT),
    "engine/ops": (["engine/core/", "engine/program/"], CLIENT),
    "engine/autograd": (["engine/core/", "engine/program/", "engine/ops/"], CLIENT),
    "engine/passes": (["engine/core/", "engine/program/", "engine/ops/"], CLIENT),
    "engine/memory": (["engine/core/"], [*ABSL, "zstd.h", "xxhash.h"]),
    "engine/collective": (["engine/core/", "engine/program/"], CLIENT),
    "engine/backends": (
        ["engine/core/", "engine/program/", "engine/ops/", "engine/memory/"], ABSL),
    "engine/backends/cpu": (
        ["engine/core/", "engine/program/", "engine/ops/", "engine/memory/",
         "engine/backends/backend.h", "engine/backends/prepared_loop.h", "engine/backends/scratch_bytes.h"],
        [*ABSL, "hwy/", "oneapi/dnnl/", "omp.h"]),
    "engine/backends/sim": (
        ["engine/core/", "engine/program/", "engine/ops/", "engine/memory/",
         "engine/backends/backend.h", "engine/backends/cpu/"], ABSL),
    "engine/backends/cuda": (
        ["engine/core/", "engine/program/", "engine/ops/", "engine/memory/",
         "engine/passes/loop.h", "engine/backends/backend.h", "engine/backends/accelerator.h",
         "engine/backends/scratch_bytes.h", "engine/backends/cpu/"],
        [*ABSL, "xxhash.h"]),
    "engine/runtime": (
        ["engine/core/", "engine/program/", "engine/ops/", "engine/memory/", "engine/passes/",
         "engine/collective/", "engine/backends/backend.h", "engine/backends/accelerator.h",
         "engine/backends/prepared_loop.h"], ABSL),
    "engine/session": (
        ["engine/core/", "engine/program/", "engine/ops/", "engine/memory/", "engine/autograd/",
         "engine/runtime/", "engine/backends/backend.h", "engine/backends/accelerator.h",
         "engine/engine.h", "engine/transfers.h"], ABSL),
    "engine": (["engine/"], ABSL),
    "proto/wire": (["engine/core/", "engine/program/"], CLIENT),
    **{f"server/{room}": ([*ENGINE, "proto/wire/", "teletensor/v1/",
                          *(f"server/{below}/" for below in rooms)], DAEMON)
       for room, rooms in ROOMS.items()},
    "server": ([*ENGINE, "proto/wire/", "teletensor/v1/", "server/"], DAEMON),
    "clients/wire": ([], [STD, POSIX, "grpc/"]),
    "clients/session": (
        ["engine/core/", "engine/program/", "engine/ops/", "engine/autograd/", "engine/passes/",
         "proto/wire/", "clients/wire/wire.h"],
        [STD, POSIX]),
    "clients/torch": (
        ["engine/core/", "engine/ops/", "engine/autograd/", "clients/session/"], CLIENT),
    "clients/cpp": (
        ["engine/core/", "engine/program/", "engine/ops/", "engine/autograd/", "engine/passes/",
         "proto/wire/", "clients/wire/wire.h", "clients/session/"],
        [STD, POSIX, "nlohmann/"]),
    "clients/cpp/examples": (["clients/cpp/client.h"], [STD]),
    "clients/python/_core": (
        ["engine/core/", "engine/program/", "engine/ops/", "engine/autograd/",
         "engine/passes/", "proto/wire/", "clients/session/", "clients/torch/"],
        [STD, POSIX, "nanobind/", "Python.h", "structmember.h", "calls/", "capture/", "session/"]),
}
# Headers that unit tests may include in addition: those of the test library, and the layers that a test
# needs to drive its own.
TESTS = {
    "engine/backends/cuda": ["cublasLt.h", "cudnn_graph.h", "sanitizer/lsan_interface.h"],
    "engine/runtime": ["engine/backends/"],
    "engine/session": ["engine/backends/", "engine/engine.h"],
    "proto/wire": ["teletensor/v1/", "google/protobuf/"],
    "server": ["engine/"],
    **{f"server/{room}": ["engine/", "server/"] for room in ROOMS},
    "clients/cpp": ["server/", "engine/"],
}
PROJECT = ("engine/", "proto/", "server/", "clients/", "teletensor/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = [p for p in files(".cc", ".h")
           if relative(p).startswith(("engine/", "proto/", "server/", "clients/"))]


def folder_of(name: str) -> str:
    matching = [folder for folder in LAYERS if name.startswith(folder + "/")]
    assert matching, f"{name} stands in no layer of this test's table"
    return max(matching, key=len)


def kind(header: str) -> str:
    if re.fullmatch(r"[a-z_0-9]+", header):
        return STD
    return POSIX if re.fullmatch(r"((sys|netinet|arpa|linux)/)?[a-z_0-9]+\.h", header) else ""


def allowed(name: str, header: str) -> bool:
    folder = folder_of(name)
    project, others = LAYERS[folder]
    if name.endswith(("_test.cc", "_test.h")):
        others = [*others, "gtest/", "gmock/", POSIX]
        project = project + TESTS.get(folder, [])
        others = others + TESTS.get(folder, [])
    if header.startswith(PROJECT):
        rest = header.removeprefix(folder + "/")
        own = rest != header and folder_of(header) == folder
        return own or any(header.startswith(prefix) for prefix in project)
    return kind(header) in others or any(header.startswith(prefix) for prefix in others)


def test_includes_follow_the_layers():
    wrong = []
    for path in SOURCES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if match and not allowed(relative(path), match.group(2)):
                wrong.append(f"{relative(path)}:{number} includes {match.group(2)}")
    assert not wrong, "\n".join(wrong)


def test_the_table_refuses_what_it_should():
    assert not allowed("engine/core/dtype.cc", "engine/ops/op.h")
    assert not allowed("engine/core/dtype.cc", "absl/strings/str_cat.h")
    assert not allowed("engine/runtime/execute/executor.cc", "engine/backends/cpu/cpu.h")
    assert not allowed("engine/memory/pool.cc", "engine/session/session.h")
    assert not allowed("engine/autograd/graph.cc", "unistd.h")
    assert not allowed("server/stream/service.cc", "engine/session/session.h")
    assert allowed("engine/memory/pool.cc", "absl/container/flat_hash_map.h")
    assert allowed("engine/session/session.cc", "engine/session/front.h")


def test_only_the_codec_sees_session_protocol_and_engine():
    """The vocabularies of the session protocol and of the engine meet in one file only."""
    both = []
    for path in files(".cc", ".h"):
        name = relative(path)
        if not name.startswith("server/") or name.endswith("_test.cc"):
            continue
        headers = [m.group(2) for m in map(INCLUDE.match, path.read_text().splitlines()) if m]
        if any(h.startswith("proto/wire/") for h in headers) and any(
                h.startswith("teletensor/v1/") for h in headers):
            both.append(name)
    assert [name for name in both if not name.startswith("server/session/codec")] == []


# At run time the client requires only grpcio and numpy; torch and the safetensors formats are used only on
# request.
CLIENT_IMPORTS = {"teletensor", "numpy", "grpc"}
LAZY_IMPORTS = {"torch", "IPython", "cloudpickle"}
# Folders of adapters for libraries, which no other module imports.
ADAPTERS = ("clients/python/teletensor/integrations/", "clients/python/teletensor/torch/")
ADAPTED = {"ray", "torch"}  # libraries that only the adapters import


def imports(tree: ast.Module):
    """Yields (module, at the top level of the file)."""
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")[0], id(node) in top
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0], id(node) in top


CLIENT_FILES = [p for p in files(".py") if relative(p).startswith("clients/python/teletensor/")]


def test_client_imports():
    for path in CLIENT_FILES:
        for module, top in imports(ast.parse(path.read_text())):
            known = module in sys.stdlib_module_names or module in CLIENT_IMPORTS
            lazy = module in LAZY_IMPORTS and not top
            adapted = module in ADAPTED and relative(path).startswith(ADAPTERS)
            assert known or lazy or adapted, f"{relative(path)} imports {module}"


def modules_of_the_client() -> dict[str, ast.Module]:
    """Every module of the client by its full name."""
    found = {}
    for path in CLIENT_FILES:
        parts = list(path.relative_to(ROOT / "clients/python").with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def loaded_by(name: str, tree: ast.Module, modules: dict[str, ast.Module]) -> set[str]:
    """The modules of the client that `name` imports while it is loaded itself."""
    is_package = any(other.startswith(name + ".") for other in modules)
    package = name.split(".") if is_package else name.split(".")[:-1]
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or is_for_type_checkers(node):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            found |= {inner if (inner := f"{module}.{alias.name}") in modules or alias.name == "_core" else module
                      for alias in node.names}
    return found & set(modules) - {name}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules that are left when all that import nothing, or only removed modules, are removed."""
    left = dict(graph)
    while free := [name for name, loads in left.items() if not loads & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


# Modules whose purpose is the whole package: `import teletensor.as_torch as torch`, for programs
# that ask this package for PyTorch's version.
WHOLE_PACKAGE = {"teletensor.as_torch"}


def test_the_clients_imports_form_no_circle():
    modules = modules_of_the_client()
    graph = {name: loaded_by(name, tree, modules) for name, tree in modules.items()}
    root = "teletensor"
    assert sorted(n for n, loads in graph.items() if root in loads and n not in WHOLE_PACKAGE) == []
    assert circle(graph) == []


def test_a_circle_is_found():
    sources = {"a": "from . import b", "a.b": "from . import c", "a.c": "def f():\n    from . import b", "a.d": "x = 1"}
    modules = {name: ast.parse(text) for name, text in sources.items()}
    assert circle({n: loaded_by(n, tree, modules) for n, tree in modules.items()}) == []
    modules["a.c"] = ast.parse("if x:\n    from .b import y")
    assert circle({n: loaded_by(n, tree, modules) for n, tree in modules.items()}) == ["a", "a.b", "a.c"]


def test_pickles_only_between_a_loader_and_its_workers():
    for path in CLIENT_FILES:
        found = {"pickle", "cloudpickle"} & {m for m, _ in imports(ast.parse(path.read_text()))}
        assert not found or relative(path).endswith("/utils/data/_parcels.py"), relative(path)


def test_there_is_something_to_check():
    assert len(SOURCES) > 50 and len(CLIENT_FILES) > 10 and (ROOT / "CMakeLists.txt").exists()
