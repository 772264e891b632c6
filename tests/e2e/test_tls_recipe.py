"""The recipe for TLS of docs/operating.md: its shell lines are run in a folder of their own, then README's program.

Two words are replaced: the-box by localhost, which is a name of this machine, and the port by a free one.
"""

import os
import re
import subprocess
import sys
import textwrap
import threading

from support.daemon import HANG, ROOT, binary


def block(page, language, containing):
    """The one fenced block of a page in that language with that text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [body for body in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if containing in body]
    assert len(found) == 1, (containing, len(found))
    return textwrap.dedent(found[0]).rstrip()


def first_line(process, text):
    """The first line of standard output, which has `text`."""
    timer = threading.Timer(HANG, process.kill)
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    assert text in line, line
    return line


def test_the_recipe_for_tls(tmp_path):
    made, token, serve, health, alice = block("docs/operating.md", "sh", "teletensor cert the-box").splitlines()
    programs, work = tmp_path / "bin", tmp_path / "work"
    programs.mkdir()
    work.mkdir()
    for name, command in (("teletensord", binary()), ("teletensor", f"{sys.executable} -m teletensor.cli"),
                          ("python", sys.executable)):
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    (work / "train.py").write_text(block("README.md", "python", "tt.linspace"), encoding="utf-8")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TELETENSOR", "XDG_"))}
    environment = {**inherited, "PATH": f"{programs}:{os.environ['PATH']}",
                   "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(work)}

    def run(line):
        done = subprocess.run(line.replace("the-box", "localhost"), shell=True, cwd=work, env=environment,
                              capture_output=True, text=True, timeout=HANG, umask=0o022)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done

    run(made)
    assert run(token).stdout == ""
    modes = {path.name: path.stat().st_mode & 0o777 for path in work.iterdir()}
    assert modes["token"] == modes["ca.key"] == modes["server.key"] == 0o600
    assert modes["ca.pem"] == modes["server.pem"] == 0o644
    daemon = subprocess.Popen("exec " + serve.replace(":7420", ":0"), shell=True, cwd=work, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = re.search(r" tcp=\S+:(\d+)", first_line(daemon, "ready")).group(1)
        run(health.replace("7420", port))
        run(alice)
        done = run(f"TELETENSOR_TOKEN_FILE=alice.token TELETENSOR_CA=ca.pem TELETENSOR_ADDRESS=the-box:{port} "
                   "python train.py")
        assert float(done.stdout) > 0 and not done.stderr
    finally:
        daemon.terminate()
        daemon.wait(HANG)
        daemon.stdout.close()
