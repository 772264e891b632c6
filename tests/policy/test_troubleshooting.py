"""docs/troubleshooting.md has every class of errors, and every text with which `connect` fails."""

import ast
import re

import pytest
from repository import ROOT
from teletensor import _errors

PACKAGE = ROOT / "clients/python/teletensor"
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
SESSIONS = (ROOT / "docs/sessions.md").read_text(encoding="utf-8")
DIFFERS = "…"  # on the page, for what a program puts into a text
# Where `connect` raises: whole modules, or functions of one.
CONNECT = {
    "_credentials": None,
    "_daemon": None,
    "_reach": None,
    "_session": {"connect", "_check_threads", "_name", "place_of"},
    "_transport": {"_hello", "open_transport"},
}
CAUSES = ("Fault", "Absent", "Silent")  # classes of _reach
# Where the daemon refuses a Hello, and the codes that mean it.
REFUSALS = ["access/auth.cc", "access/rights.cc", "session/leases.cc", "session/codec.cc", "stream/service.cc"]
REFUSAL = re.compile(
    r"Status\(\s*(?:core::)?(?:Code::)?k(?:Unauthenticated|ResourceExhausted|FailedPrecondition),(.*?)\);$",
    re.M | re.S)


def text_of(node: ast.expr) -> str:
    """The text of an expression, with DIFFERS for what is known only when the program runs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return DIFFERS


def choices(node: ast.expr):
    """The expressions that a conditional expression chooses from; else the expression itself."""
    if isinstance(node, ast.IfExp):
        yield from choices(node.body)
        yield from choices(node.orelse)
    else:
        yield node


def raised(tree: ast.AST):
    """The texts of the exceptions that are made in a raise statement, and of the causes that _reach finds; not those
    of exceptions made elsewhere."""
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
    """The longest constant piece of each refusal: the source puts numbers and names between them."""
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
