"""Who may include whom: one table, checked against every #include and every import."""

import ast
import re
import sys

from repository import ROOT, files, relative

STD = "std"  # C++ standard library headers: no dot and no slash in their names
POSIX = "posix"  # <name.h> and <sys/name.h>
CLIENT = [STD]
ABSL = [STD, POSIX, "absl/"]

# folder -> (project headers it may include, by prefix; other headers it may include).
# The longest matching folder counts. A folder may always include its own headers.
LAYERS = {
    "engine/core": ([], CLIENT),
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
         "engine/backends/backend.h", "engine/backends/scratch_bytes.h"],
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
         "engine/collective/", "engine/backends/backend.h", "engine/backends/accelerator.h"], ABSL),
    "engine/session": (
        ["engine/core/", "engine/program/", "engine/ops/", "engine/memory/", "engine/autograd/",
         "engine/runtime/", "engine/backends/backend.h", "engine/backends/accelerator.h",
         "engine/engine.h"], ABSL),
    "engine": (["engine/"], ABSL),
    "proto/wire": (["engine/core/", "engine/program/"], CLIENT),
    "server": (
        ["engine/engine.h", "engine/core/", "engine/program/", "engine/ops/op.h",
         "engine/memory/block_file.h", "engine/runtime/fabric.h", "engine/collective/link.h",
         "proto/wire/", "teletensor/v1/"],
        [*ABSL, "grpc/", "grpcpp/", "google/protobuf/", "spdlog/", "CLI/", "toml++/", "nlohmann/",
         "httplib.h", "prometheus/", "openssl/", "sqlite3.h"]),
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
        [STD, POSIX, "nanobind/", "Python.h", "structmember.h"]),
}
# What a unit test may include besides: the test library, and the layers it needs to drive its own.
TESTS = {
    "engine/backends/cuda": ["cublasLt.h", "cudnn_graph.h", "sanitizer/lsan_interface.h"],
    "engine/runtime": ["engine/backends/"],
    "engine/session": ["engine/backends/", "engine/engine.h"],
    "proto/wire": ["teletensor/v1/", "google/protobuf/"],
    "server": ["engine/"],
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
    assert not allowed("engine/runtime/executor.cc", "engine/backends/cpu/cpu.h")
    assert not allowed("engine/memory/pool.cc", "engine/session/session.h")
    assert not allowed("engine/autograd/graph.cc", "unistd.h")
    assert not allowed("server/service.cc", "engine/session/session.h")
    assert allowed("engine/memory/pool.cc", "absl/container/flat_hash_map.h")
    assert allowed("engine/session/session.cc", "engine/session/front.h")


def test_only_the_codec_sees_session_protocol_and_engine():
    """Two vocabularies meet in one file."""
    both = []
    for path in files(".cc", ".h"):
        name = relative(path)
        if not name.startswith("server/") or name.endswith("_test.cc"):
            continue
        headers = [m.group(2) for m in map(INCLUDE.match, path.read_text().splitlines()) if m]
        if any(h.startswith("proto/wire/") for h in headers) and any(
                h.startswith("teletensor/v1/") for h in headers):
            both.append(name)
    assert [name for name in both if not name.startswith("server/codec")] == []


# At run time the client needs grpcio and numpy; torch and safetensors' formats only on request.
CLIENT_IMPORTS = {"teletensor", "numpy", "grpc"}
LAZY_IMPORTS = {"torch", "IPython", "cloudpickle"}
# Folders of what is written for a library, which no other module imports.
ADAPTERS = ("clients/python/teletensor/integrations/", "clients/python/teletensor/torch/")
ADAPTED = {"ray", "torch"}  # libraries that adapters import, and no other module


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


def test_pickles_only_between_a_loader_and_its_workers():
    for path in CLIENT_FILES:
        found = {"pickle", "cloudpickle"} & {m for m, _ in imports(ast.parse(path.read_text()))}
        assert not found or relative(path).endswith("/utils/data/_parcels.py"), relative(path)


def test_there_is_something_to_check():
    assert len(SOURCES) > 50 and len(CLIENT_FILES) > 10 and (ROOT / "CMakeLists.txt").exists()
