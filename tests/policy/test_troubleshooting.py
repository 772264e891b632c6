"""Checks that docs/troubleshooting.md has every error class, and every message with which `connect`
fails."""

import ast
import re

import pytest
from repository import ROOT
from teletensor._sessions import errors as _errors

PACKAGE = ROOT / "clients/python/teletensor"
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
SESSIONS = (ROOT / "docs/sessions.md").read_text(encoding="utf-8")
DIFFERS = "…"  # stands on the page for text that a program fills in
# Where `connect` raises errors: whole modules, or functions of a module.
CONNECT = {
    "_connection/credentials": None,
    "_connection/daemon": None,
    "_connection/reach": None,
    "_sessions/session": {"connect", "_check_threads", "_name", "place_of"},
    "_connection/transport": {"_hello", "open_transport"},
}
CAUSES = ("Fault", "Absent", "Silent")  # classes of `reach`
# The files in which the daemon refuses a Hello, and the codes that they use.
REFUSALS = ["access/auth.cc", "access/rights.cc", "session/leases/lease_table.cc", "session/codec.cc",
            "stream/service.cc"]
REFUSAL = re.compile(
    r"Status\(\s*(?:core::)?(?:Code::)?k(?:Unauthenticated|ResourceExhausted|FailedPrecondition),(.*?)\);$",
    re.M | re.S)


def text_of(node: ast.expr) -> str:
    """The text of an expression, with DIFFERS for parts that are known only at run time."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return DIFFERS


def choices(node: ast.expr):
    """The expressions among which a conditional expression chooses; otherwise the expression itself."""
    if isinstance(node, ast.IfExp):
        yield from choices(node.body)
        yield from choices(node.orelse)
    else:
        yield node


def raised(tree: ast.AST):
    """The messages of the exceptions that are constructed in a raise statement, and of the causes that
    `reach` finds; not those of exceptions that are constructed elsewhere."""
    for node in ast.walk(tree):
        made = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(made, ast.Call) or not made.args:
            continue
        name = made.func.id if isinstance(made.func, ast.Name) else ""
        if name in CAUSES or (isinstance(node, ast.Raise) and not name.startswith("_")):
            for text in map(text_of, choices(made.args[0])):
                if text.strip(DIFFERS + " "):
                    yield text


def texts_of_connect():
    for module, functions in CONNECT.items():
        tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
        parts = [tree] if functions is None else [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in functions]
        if functions is not None:
            assert {node.name for node in parts} == functions, f"{module} has other functions now"
        for part in parts:
            yield from raised(part)


def texts_of_the_daemon():
    """The longest constant piece of each refusal, because the source inserts numbers and names between the
    pieces."""
    for name in REFUSALS:
        for arguments in REFUSAL.findall((ROOT / "server" / name).read_text(encoding="utf-8")):
            pieces = re.findall(r'"((?:[^"\\]|\\.)*)"', re.sub(r'"\s*"', "", arguments))
            yield max(pieces, key=len).strip()


@pytest.mark.parametrize("name", _errors.__all__)
def test_every_class_has_a_section(name):
    assert f"\n### {name}\n" in PAGE


@pytest.mark.parametrize("text", sorted(set(texts_of_connect())))
def test_every_text_of_connect_is_there(text):
    assert text in PAGE


@pytest.mark.parametrize("text", sorted(set(texts_of_the_daemon())))
def test_every_refusal_is_there(text):
    assert text in PAGE


def test_every_reason_of_a_lost_session_is_there():
    reasons = re.findall(r'"([a-z]+)"', _errors.SessionLostError.__doc__)
    assert len(reasons) > 10
    assert [reason for reason in reasons if f"| `{reason}` |" not in SESSIONS] == []
