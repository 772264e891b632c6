"""The .proto files keep the contracts of the protocol numbers that the daemon serves (proto/released/README.txt)."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from repository import ROOT

PROTO = ROOT / "proto"
RELEASED = sorted((PROTO / "released").glob("*.binpb"))
NEWEST = RELEASED[-1]


def constant(name):
    """A constant of protocol.h."""
    text = (PROTO / "wire/protocol.h").read_text(encoding="utf-8")
    value = re.search(rf"\b{name} = (\w+)( - 1)?;", text)
    return constant(value[1]) - 1 if value[2] else int(value[1])


def breaks(proto, against):
    """The findings of `buf breaking`: pairs of a rule and a sentence."""
    done = subprocess.run(
        [Path(sys.executable).parent / "buf", "breaking", proto, "--against", against, "--error-format", "json"],
        capture_output=True, text=True, timeout=120, check=False,
        env={"HOME": tempfile.gettempdir(), "PATH": os.defpath})
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == (100 if found else 0), done.stdout + done.stderr
    return [(each["type"], each["message"]) for each in found]


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.stem)
def test_no_served_number_is_broken(released):
    assert breaks(PROTO, released) == []


def test_each_served_number_has_a_contract():
    lowest, highest = constant("kProtocolMin"), constant("kProtocol")
    assert [path.stem for path in RELEASED] == [f"protocol-{n}" for n in range(lowest, highest + 1)]


def test_clients_outside_cpp_state_the_same_number():
    highest = constant("kProtocol")
    for path, pattern in (("clients/go/client.go", r"const protocol, .* = (\d+), "),
                          ("tests/conformance/pure.py", r"(?m)^PROTOCOL, .* = (\d+), "),
                          ("clients/python/teletensor/_conformance/runner.py", r"(?m)^PROTOCOL = (\d+)$"),
                          ("docs/wire.md", r"The present number is (\d+)\.")):
        stated = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"))
        assert stated and int(stated[1]) == highest, path


# The rule of buf that must refuse the change; the file; the text that is changed.
BREAKS = {
    "a field is removed": ("FIELD_NO_DELETE", "program", r"  bool bulk = 2;[^\n]*\n", ""),
    "a field is removed and its number reserved": (
        "FIELD_NO_DELETE", "program", r"  bool bulk = 2;[^\n]*\n", "  reserved 2;\n"),
    "a field gets another number": ("FIELD_NO_DELETE", "program", r"  bool bulk = 2;", "  bool bulk = 12;"),
    "two fields exchange their numbers": (
        "FIELD_SAME_NAME", "session", r"uint64 first_seq = 1;([^\n]*\n  uint64 first_id) = 2;(?=[^\n]*next handle)",
        r"uint64 first_seq = 2;\1 = 1;"),
    "a number gets another size": (
        "FIELD_SAME_TYPE", "session", r"(?<=message Frame \{\n)  uint64 first_seq", "  uint32 first_seq"),
    "a number gets another coding": (
        "FIELD_SAME_TYPE", "program", r"repeated sint64 integers = 7", "repeated int64 integers = 7"),
    "a text becomes bytes": ("FIELD_SAME_TYPE", "session", r"string token = 4", "bytes token = 4"),
    "a list becomes one value": (
        "FIELD_SAME_CARDINALITY", "program", r"repeated uint64 roots", "uint64 roots"),
    "one value becomes a list": (
        "FIELD_SAME_CARDINALITY", "session", r"string server_version = 2;", "repeated string server_version = 2;"),
    "a field loses its presence": (
        "FIELD_SAME_CARDINALITY", "program", r"optional uint32 made = 11", "uint32 made = 11"),
    "a field leaves its oneof": (
        "FIELD_SAME_ONEOF", "program", r"    Leave leave = 31;([^\n]*)\n  \}", r"  }\n  Leave leave = 31;\1"),
    "a value of an enum is removed": ("ENUM_VALUE_NO_DELETE", "program", r"  DTYPE_UINT64 = 15;.*\n", ""),
    "a value of an enum gets another number": (
        "ENUM_VALUE_NO_DELETE", "program", r"DTYPE_UINT64 = 15", "DTYPE_UINT64 = 16"),
    "a call is removed": ("RPC_NO_DELETE", "session", r"  rpc Interrupt\([^\n]*\n", ""),
    "a call takes one message in place of a stream": (
        "RPC_SAME_CLIENT_STREAMING", "session", r"rpc Run\(stream Frame\)", "rpc Run(Frame)"),
    "a call takes another message": (
        "RPC_SAME_REQUEST_TYPE", "session", r"rpc Close\(CloseRequest\)", "rpc Close(AttachRequest)"),
    "a call returns another message": (
        "RPC_SAME_RESPONSE_TYPE", "session", r"returns \(CloseReply\)", "returns (AttachReply)"),
    "a message is removed": ("MESSAGE_NO_DELETE", "session", r"StagedReply", "StagedAnswer"),
    "a reserved number is free again": ("RESERVED_MESSAGE_NO_DELETE", "session", r"  reserved 10;\n", ""),
    "the package has another name": (
        "FILE_SAME_PACKAGE", "store", r"(?m)^package teletensor\.v1;", "package teletensor.v2;"),
    "a Go package has another path": (
        "FILE_SAME_GO_PACKAGE", "session", r'go_package = "teletensor/wire"', 'go_package = "teletensor/other"'),
    "a Java package is no longer named": (
        "FILE_SAME_JAVA_PACKAGE", "program", r"option java_package[^\n]*\n", ""),
    "Java classes move into one file": (
        "FILE_SAME_JAVA_MULTIPLE_FILES", "admin", r"option java_multiple_files[^\n]*\n", ""),
    "a C# namespace has another name": (
        "FILE_SAME_CSHARP_NAMESPACE", "store", r'"Teletensor\.V1"', '"Teletensor"'),
}
ADDITIONS = {
    "a field": ("session", r"(?<=message CloseRequest \{)\}", "\n  bool now = 1;\n}"),
    "a field of a Command": ("program", r"optional uint32 made = 11;", "optional uint32 made = 11;\n  bool late = 32;"),
    "a kind of command": ("program", r"Leave leave = 31;", "Leave leave = 31;\n    Leave left = 32;"),
    "a value of an enum": ("program", r"DTYPE_UINT64 = 15;", "DTYPE_UINT64 = 15;\n  DTYPE_INT4 = 16;"),
    "a call": ("session", r"  rpc Close\(", "  rpc Shut(CloseRequest) returns (CloseReply);\n  rpc Close("),
    "a message": ("session", r"message CloseReply \{\}", "message CloseReply {}\nmessage New {}"),
}


def changed(folder, name, pattern, text):
    """A copy of the .proto files with one change."""
    shutil.copytree(PROTO, folder, ignore=shutil.ignore_patterns("wire", "released"), dirs_exist_ok=True)
    path = folder / f"teletensor/v1/{name}.proto"
    before = path.read_text(encoding="utf-8")
    after, count = re.subn(pattern, text, before)
    assert count and after != before, f"{pattern!r} is not in {name}.proto"
    path.write_text(after, encoding="utf-8")
    return folder


@pytest.mark.parametrize("change", BREAKS)
def test_a_breaking_change_is_refused(change, tmp_path):
    rule, *edit = BREAKS[change]
    found = breaks(changed(tmp_path / "proto", *edit), NEWEST)
    assert rule in {kind for kind, _ in found}, found


@pytest.mark.parametrize("change", ADDITIONS)
def test_an_addition_is_accepted(change, tmp_path):
    assert breaks(changed(tmp_path / "proto", *ADDITIONS[change]), NEWEST) == []


# Where the sources that a client's author generates are: the same in all files, because they import each other.
OPTIONS = {"go_package": "teletensor/wire", "java_package": "teletensor.v1", "java_multiple_files": True,
           "csharp_namespace": "Teletensor.V1"}


def test_every_file_says_where_generated_sources_are(tmp_path):
    files = sorted(path.relative_to(PROTO).as_posix() for path in (PROTO / "teletensor").rglob("*.proto"))
    assert len(files) == 6
    subprocess.run(["protoc", f"-I{PROTO}", f"--descriptor_set_out={tmp_path}/set", *files], check=True, timeout=60)
    found = FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    assert {each.name: {option.name: value for option, value in each.options.ListFields()}
            for each in found} == dict.fromkeys(files, OPTIONS)


def test_java_and_csharp_sources_are_where_the_options_say(tmp_path):
    """All files together: no message of one file has the place of a message or of the outer class of another."""
    files = [path.relative_to(PROTO).as_posix() for path in (PROTO / "teletensor").rglob("*.proto")]
    java, csharp = tmp_path / "java", tmp_path / "csharp"
    for folder in (java, csharp):
        folder.mkdir()
    subprocess.run(["protoc", f"-I{PROTO}", f"--java_out={java}", f"--csharp_out={csharp}", *files],
                   check=True, timeout=60)
    classes = list(java.rglob("*.java"))
    assert {path.parent for path in classes} == {java / "teletensor/v1"}
    assert {"HelloRequest.java", "Frame.java", "Command.java", "DType.java"} <= {path.name for path in classes}
    for path in classes:
        assert "\npackage teletensor.v1;\n" in path.read_text(encoding="utf-8"), path
    sources = list(csharp.rglob("*.cs"))
    assert len(sources) == len(files)
    for path in sources:
        assert re.findall(r"(?m)^namespace ([\w.]+) \{$", path.read_text(encoding="utf-8"))[0] == "Teletensor.V1"


def test_clients_from_the_documents_are_small():
    """The Go client without its generated ops, and the client in pure Python: what the protocol asks of a client."""
    go = [path for path in (ROOT / "clients/go").glob("*.go") if path.name not in ("ops.go", "client_test.go")]
    for sources in (go, [ROOT / "tests/conformance/pure.py"]):
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources)
        assert 0 < lines <= 600, f"{sources}: {lines} lines"
