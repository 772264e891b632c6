"""The Go client: its own tests, the sin^2 network beside PyTorch's losses, and lost connections."""

import json
import os
import random
import shutil
import subprocess

import pytest
from conformance import programs
from conformance.liar import Liar
from support import sin2
from support.daemon import ROOT
from support.proxy import Proxy
from teletensor._conformance.fake import FakeDaemon
from teletensor._conformance.schema import Schema
from teletensor._conformance.transcript import FOLDER

NEEDED = ("go", "protoc", "protoc-gen-go")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the client's programs."""
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (deploy/packages-go.txt)")
    folder = tmp_path_factory.mktemp("go")
    made = subprocess.run([ROOT / "clients/go/build.sh", folder], capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stdout + made.stderr
    (folder / "weights.json").write_text(json.dumps(
        {name: values.ravel().tolist() for name, values in sin2.weights().items()}))
    return folder


def training(built, momentum, epochs):
    """The command of the example, without the address."""
    return [built / "bin/sin2", "-weights", built / "weights.json", "-momentum", str(momentum), "-epochs", str(epochs)]


def train(built, address, momentum, epochs=sin2.EPOCHS, token=""):
    """The losses that the example prints."""
    done = subprocess.run([*training(built, momentum, epochs), address], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "TELETENSOR_TOKEN": token})
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def run_tests(built, address, *flags):
    return subprocess.run([built / "bin/client_test", "-test.v", "-test.timeout=240s", *flags], capture_output=True,
                          text=True, timeout=300, env={**os.environ, "TELETENSOR_ADDRESS": address})


def test_the_sources_are_formatted(built):
    told = subprocess.run(["gofmt", "-l", ROOT / "clients/go"], capture_output=True, text=True, check=True)
    assert told.stdout == ""


def test_the_tests_of_the_client(built, shared_daemon):
    done = run_tests(built, shared_daemon.unix)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("--- PASS") == 7, done.stdout


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_sin2_gives_pytorchs_losses(built, shared_daemon, momentum):
    losses = train(built, shared_daemon.tcp, momentum, token=shared_daemon.token)
    assert losses == pytest.approx(sin2.stored()[str(momentum)], abs=1e-5)


def test_a_cut_connection_changes_nothing(built, shared_daemon):
    """The connection is cut again and again in both directions; every loss equals that of an uncut run."""
    whole = train(built, shared_daemon.unix, 0.9)
    proxy, rng = Proxy(shared_daemon.unix.removeprefix("unix:")), random.Random(20261128)
    try:
        proxy.cut_each(lambda: rng.randrange(9000, 20000), both=True)  # Hello has 6,000 bytes
        assert train(built, proxy.address, 0.9) == whole
        assert proxy.connections > 5
    finally:
        proxy.close()


def test_the_daemon_restarts(built, start_daemon):
    """The daemon is restarted in the middle of the training, and the client continues with its session."""
    daemon = start_daemon("--restart", "60")
    whole = train(built, daemon.unix, 0.9, epochs=60)
    with subprocess.Popen([*training(built, 0.9, 60), daemon.unix], stdout=subprocess.PIPE, text=True) as running:
        losses = [running.stdout.readline()]
        assert daemon.terminate() == 0
        assert running.poll() is None
        daemon.restart()
        losses += running.stdout.readlines()
    assert running.returncode == 0 and [float(line) for line in losses] == whole


def test_cut_transfers_are_continued(built, shared_daemon):
    """An upload and a download of 24 MiB, over connections that are cut within 1 to 6 MiB."""
    proxy, rng = Proxy(shared_daemon.unix.removeprefix("unix:")), random.Random(20261128)
    try:
        proxy.cut_each(lambda: rng.randrange(1 << 20, 6 << 20), both=True)
        done = run_tests(built, proxy.address, "-test.run", "Bulk")
        assert done.returncode == 0 and done.stdout.count("--- PASS") == 1, done.stdout + done.stderr
        assert proxy.connections > 8
    finally:
        proxy.close()


def test_without_a_daemon(built, tmp_path):
    done = subprocess.run([built / "bin/sin2", f"unix:{tmp_path}/none.sock"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 1 and "Unavailable" in done.stderr, done.stderr


def test_frames_are_those_of_the_conformance_kit(built, shared_daemon):
    """The kit's own encoder gives the bytes of every frame that the Go client has sent."""
    with Liar(shared_daemon.unix) as recorder:
        assert len(train(built, recorder.address, 0.9, epochs=1)) == 1
    schema = Schema()
    commands = 0
    for frame in recorder.frames:
        values = schema.decode("Frame", frame)
        commands += len(values["commands"])
        assert schema.encode("Frame", values) == frame
    assert commands > 51 * 10


@pytest.mark.parametrize("name", programs.NAMES)
def test_the_kits_programs(built, name):
    """The conformance kit's fake daemon finds no difference to its transcripts."""
    fake = FakeDaemon("127.0.0.1:0")
    try:
        script = fake.begin(FOLDER / f"{name}.txt")
        done = subprocess.run([built / "bin/conformance", fake.address, name], capture_output=True, text=True,
                              timeout=60, check=False)
        assert (fake.wait(script, 10), done.returncode) == ("", 0), done.stderr
    finally:
        fake.close()
