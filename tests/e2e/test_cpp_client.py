"""The examples of the C++ client train a network through a daemon, and run what Python has saved."""

import os
import random
import re
import subprocess
import sys

import pytest
import teletensor as tt
from support.daemon import ROOT
from support.proxy import Proxy
from support.tls import Authority
from teletensor import nn

FOLDER = ROOT / "build/release/bin"


def run(name, *arguments, **environment):
    example = FOLDER / f"teletensor-{name}"
    if not example.exists():
        pytest.skip("the example is not built here")
    return subprocess.run([example, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment})


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_it_trains(shared_daemon, way):
    who = {"TELETENSOR_TOKEN_FILE": shared_daemon.token_file} if way == "tcp" else {}
    done = run("train", getattr(shared_daemon, way), "300", **who)
    assert done.returncode == 0, done.stderr
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 4 and losses[-1] < 0.01 < losses[0], done.stdout


def test_nobody_answers(tmp_path):
    done = run("train", f"unix:{tmp_path}/none.sock")
    assert done.returncode == 1 and "code" in done.stderr, (done.stdout, done.stderr)


def test_tls_and_a_token(start_daemon, tmp_path):
    """The C++ client uses the same variables as the Python client, and TLS for the same addresses."""
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    daemon = start_daemon("--tls-cert", str(certificate), "--tls-key", str(key))
    admin = [sys.executable, "-m", "teletensor.cli", "token", "create", "eve", "--address", daemon.unix]
    token = subprocess.run(admin, capture_output=True, text=True, check=True, timeout=60).stdout
    (tmp_path / "token").write_text(token, encoding="ascii")
    who = {"TELETENSOR_TOKEN_FILE": str(tmp_path / "token")}
    address = "tls://" + daemon.tcp
    done = run("train", address, "5", TELETENSOR_CA=str(authority.ca), **who)
    assert done.returncode == 0 and "loss" in done.stdout, done.stderr
    assert 'user="eve"' in daemon.log
    for wrong in (run("train", address, "5", **who), run("train", daemon.tcp, "5", **who),
                  run("train", address, "5", TELETENSOR_CA=str(authority.ca))):
        assert wrong.returncode == 1 and token.strip() not in wrong.stderr, wrong.stderr


def test_a_cut_connection_changes_nothing(start_daemon):
    """The stream is cut repeatedly; the client attaches again, and every loss equals that of an uncut
    run."""
    daemon = start_daemon()
    whole = run("train", daemon.unix, "600")
    assert whole.returncode == 0, whole.stderr
    proxy, rng = Proxy(daemon.socket), random.Random(1)
    try:
        proxy.cut_each(lambda: rng.randrange(40_000, 90_000))
        cut = run("train", proxy.address, "600")
        assert proxy.connections > 2
    finally:
        proxy.close()
    assert cut.returncode == 0, cut.stderr
    assert cut.stdout == whole.stdout


def saved(function, path, *examples):
    compiled = tt.compile(function)
    compiled(*examples)
    tt.jit.save(compiled, path)
    return compiled


def printed(done):
    """name -> the values of its lines, as the example prints them."""
    assert done.returncode == 0, done.stderr
    lines = {}
    for line in done.stdout.splitlines():
        name, *values = line.split()
        lines.setdefault(name, []).append([float(value) for value in values])
    return lines


def test_a_saved_training_step_goes_on_in_cpp(shared_daemon, tmp_path):
    with tt.connect(shared_daemon.unix):
        tt.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        opt = tt.optim.Adam(net.parameters(), lr=0.05)

        def step(x, y):
            opt.zero_grad()
            loss = ((net(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        compiled = tt.compile(step)
        x, y = tt.tensor([[1.0, 2.0], [3.0, 4.0]]), tt.tensor([[1.0], [-1.0]])
        for _ in range(3):
            compiled(x, y)
        path = tmp_path / "step.safetensors"
        tt.jit.save(compiled, path)
        losses = [compiled(x, y).item() for _ in range(5)]
        after = {f"net.{name}": p.reshape(-1).tolist() for name, p in net.named_parameters()}
    lines = printed(run("run", shared_daemon.unix, path, 5, "1,2,3,4:2,2", "1,-1:2,1"))
    assert [value for (value,) in lines["result"]] == pytest.approx(losses, rel=1e-8)
    for name, values in after.items():
        assert lines[name][0] == pytest.approx(values, rel=1e-8)


def test_a_saved_training_step_is_repeated_in_cpp(shared_daemon, tmp_path):
    """A program with branches, a loop and its backward; each round uses the next of two batches."""

    def forward(w, x):
        rounds = tt.zeros((), dtype=tt.int64)
        while rounds < 3:
            x = (x @ w).tanh()
            rounds += 1
        return x * 2 if x.sum() > 0 else x

    with tt.connect(shared_daemon.unix):
        w = tt.tensor([[0.5, -0.2], [0.1, 0.7]], requires_grad=True)
        opt = tt.optim.Adam([w], lr=0.05)
        scripted = tt.jit.script(forward)

        def step(x, scale):
            opt.zero_grad()
            loss = (scripted(w, x) ** 2).mean() * scale
            loss.backward()
            opt.step()
            return loss

        compiled = tt.compile(step)
        batches = tt.tensor([[[1.0, 2.0], [3.0, 4.0]], [[-1.0, 0.5], [2.0, -3.0]]])
        for _ in range(3):
            compiled(batches[0], 1.5)
        path = tmp_path / "step.safetensors"
        tt.jit.save(compiled, path)
        losses = [compiled(batches[i % 2], 1.5).item() for i in range(5)]
        after = w.reshape(-1).tolist()
    data = "1,2,3,4,-1,0.5,2,-3:2,2,2"
    lines = printed(run("run", shared_daemon.unix, path, "5/1", data, "1.5"))
    assert lines["result"][0] == pytest.approx(losses, rel=1e-8)
    assert next(values[0] for name, values in lines.items() if name != "result") == pytest.approx(after, rel=1e-8)
    done = run("run", shared_daemon.unix, path, "0/1", data, "1.5")
    assert done.returncode == 1 and "rounds must not be 0" in done.stderr


def test_a_saved_forward_with_numbers_and_random_steps(shared_daemon, tmp_path):
    with tt.connect(shared_daemon.unix):
        weight = tt.tensor([[1.0, 2.0], [3.0, 4.0]])[:, :]

        def forward(x, scale):
            return x @ weight.t() * scale + tt.zeros(2).bernoulli_(0.0)

        path = tmp_path / "forward.safetensors"
        saved(forward, path, tt.ones(2), 2.0)
    lines = printed(run("run", shared_daemon.unix, path, 2, "1,10", "0.5"))
    assert lines["result"] == [[10.5, 21.5]] * 2
    shown = run("run", shared_daemon.unix, path, "show")
    assert "matmul" in shown.stdout and "program forward(" in shown.stdout, shown
    for values, text in ([("1,10",), "takes 2 arguments"], [("1,10", "1,2"), "is a number"],
                         [("1,2,3", "1.0"), "parameter 'x' is of float32"]):
        done = run("run", shared_daemon.unix, path, 1, *values)
        assert done.returncode == 1 and text in done.stderr, done


def test_what_is_no_program_is_refused(shared_daemon, tmp_path):
    path = tmp_path / "file.safetensors"
    no_object = b"\x02" + b"\0" * 7 + b"[]"
    for contents, text in ((b"", "too short"), (b"\xff" * 64, "truncated"), (no_object, "not a JSON object")):
        path.write_bytes(contents)
        done = run("run", shared_daemon.unix, path, 1)
        assert done.returncode == 1 and text in done.stderr and "code 3" in done.stderr, done
    with tt.connect(shared_daemon.unix):
        tt.save({"x": tt.ones(2)}, path)
    assert "holds no program" in run("run", shared_daemon.unix, path, 1).stderr
    with tt.connect(shared_daemon.unix):
        saved(lambda x: (x * 2).sin(), path, tt.ones(2))
    contents = path.read_bytes()
    for at in range(len(contents) - 1, 8, -41):  # one bit of the header, description or program
        path.write_bytes(contents[:at] + bytes([contents[at] ^ 4]) + contents[at + 1:])
        done = run("run", shared_daemon.unix, path, 1, "1,2")
        assert done.returncode in (0, 1), (at, done)
    path.write_bytes(contents.replace(b"\x0a\x03sin", b"\x0a\x03sim"))
    assert "checksum" in run("run", shared_daemon.unix, path, 1, "1,2").stderr
    assert run("run", shared_daemon.unix, tmp_path / "none", 1).returncode == 1
