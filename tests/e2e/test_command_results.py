"""JSON and exit statuses of the commands: docs/operating.md says what they print and how they end."""

import json
import re
import subprocess
import sys

from support.daemon import HANG, ROOT, binary
from support.moving import Pair
from teletensor.cli import command_parser

MISSING = "unix:/nowhere/d.sock"
# Arguments with which each command asks a daemon, or would.
ASKS = {
    "health": [], "doctor": [], "sessions": [], "memory": [], "top": ["--count", "1"], "slowlog": [], "groups": [],
    "kill": ["1"], "snapshot": [], "drain": [], "move": ["1", "--to", "b"], "token": ["list"], "bench": [],
    "run": ["none.safetensors"], "onnx": ["run", "none.onnx"], "convert": ["none.pt", "x.safetensors"],
    "conformance": [MISSING, "tape"], "cert": ["no host"],
}


def run(*words, address=None):
    """The exit status and the outputs of a command."""
    asked = [] if address is None else ["--address", address]
    done = subprocess.run([sys.executable, "-m", "teletensor.cli", *words, *asked], capture_output=True, text=True,
                          timeout=240, cwd="/")
    return done.returncode, done.stdout, done.stderr


def documented():
    """The rows of the table of JSON: the words in code of each command."""
    text = (ROOT / "docs/operating.md").read_text(encoding="utf-8").partition("### JSON")[2].partition("### ")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    return {row[1].strip(" `"): re.findall(r"`(\w+)`", row[2]) for row in rows}


def keys_of(value):
    """All keys of JSON, also those of objects inside, except the names of limits."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    found = set(value)
    for key, each in value.items():
        found |= {"used", "limit"} if key == "limits" else keys_of(each)
    return found


def printed(name, address, *words):
    """Runs a command with --json; its keys must be those of the documentation."""
    status, out, err = run(*(name.split() if not words else words), "--json", address=address)
    assert status == 0, err
    assert out.count("\n") == 1 and err == ""
    known = set(documented()[name])
    if "memory" in known:  # whose keys are in the row of that command
        known |= set(documented()["memory"])
    if "limits" in known:
        known |= {"used", "limit"}
    return keys_of(json.loads(out)), known


def test_each_command_prints_the_json_of_the_documentation(start_daemon, tt):
    daemon = start_daemon("--slow-ms", "50", "--restart", "60", "--lease", "60")
    run("token", "create", "bob", address=daemon.unix)
    with tt.connect(daemon.unix, name="exp").as_current() as session:
        x = tt.ones(64, 64)
        session.publish("p", x)
        while not json.loads(run("slowlog", "--json", address=daemon.unix)[1]):
            tt.ones(2500, 2500).matmul(tt.ones(2500, 2500)).sum().item()
        for name, words in (("health", ()), ("sessions", ()), ("memory", ()), ("slowlog", ()), ("snapshot", ()),
                            ("memory --session", ("memory", "--session", "exp")), ("bench", ()),
                            ("memory --published", ("memory", "--published")), ("token list", ())):
            found, known = printed(name, daemon.unix, *words)
            missing = {"error"} if name == "snapshot" else set()
            assert found == known - missing, name
        assert run("groups", "--json", address=daemon.unix)[:2] == (0, "[]\n")
        session.publish("p", None)
        session.close()
    assert printed("drain", daemon.unix)[0] == {"kept", "lost"}
    daemon.process.wait(HANG)
    daemon.restart()


def test_json_of_moves(start_daemon, tt):
    pair = Pair(start_daemon)
    with tt.connect(pair.a.unix, name="one"), tt.connect(pair.a.unix, name="two"):
        found, known = printed("move", pair.a.unix, "move", "one", "--to", "b")
        assert found == known
        found, known = printed("drain --to", pair.a.unix, "drain", "--to", "b")
        assert found == known - {"reason"}
    pair.link.close()


def test_exit_statuses():
    """Each command: 1 without a daemon or a file, 2 for a mistake on the command line, 0 for its help."""
    parser, _ = command_parser()
    commands = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    assert set(commands) == {*ASKS, "serve", "launch"}
    for name, words in ASKS.items():
        given = [] if name in ("convert", "conformance", "cert") else ["--address", MISSING]
        status, _, err = run(name, *words, *given)
        assert status == (2 if name == "cert" else 1), (name, err)
        assert "Traceback" not in err, name
        assert run(name, *words, "--no-such-flag")[0] == 2, name
        status, out, _ = run(name, "--help")
        assert status == 0 and "Exit status: 0" in out, name
    assert run("launch", "--no-such-flag")[0] == 2 and "Exit status" in run("launch", "--help")[1]
    assert run()[0] == 2 and run("none")[0] == 2 and run("--version")[0] == 0


def test_exit_statuses_of_programs(start_daemon, tmp_path):
    daemon = start_daemon()
    health = binary().replace("teletensord", "teletensor-health")
    for words, status in (([daemon.unix], 0), ([daemon.tcp], 0), ([f"unix:{tmp_path}/none"], 1), ([], 2),
                          (["--help"], 0), (["-h"], 0), (["--no-such-flag"], 2), (["a", "b"], 2), ([""], 2)):
        done = subprocess.run([health, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, (words, done.stderr)
        assert (done.stdout == "") == (status in (1, 2)) or words == [f"unix:{tmp_path}/none"], words
    for words, status in ((["--help"], 0), (["--version"], 0), (["--no-such-flag"], 2), (["--lanes", "-1"], 2),
                          (["--no-socket"], 2), (["--no-socket", "--listen", daemon.tcp], 1)):
        done = subprocess.run([binary(), *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, (words, done.stdout, done.stderr)
