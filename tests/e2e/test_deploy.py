"""What deploy/ ships, as far as one box can try it: nginx in front, the unit, the manifests."""

import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from support.daemon import binary
from support.nginx import in_front

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
HELP = subprocess.run([binary(), "--help"], capture_output=True, text=True, timeout=30).stdout


def flags_of(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


@pytest.fixture
def proxied(start_daemon, tmp_path):
    with in_front(start_daemon, tmp_path) as front:
        yield front


def test_nginx_in_front(proxied, tt):
    address, authority, token = proxied.address, proxied.authority, proxied.token
    cert = authority.issue("alice")
    with tt.connect(address, token=token, ca=authority.ca, cert=cert):
        x = tt.arange(300_000, dtype=tt.float32)  # an upload and a download of more than a buffer
        y = tt.tensor(x.numpy()).requires_grad_()
        (y * y).sum().backward()
        assert float(y.grad[-1].item()) == 2.0 * 299_999
    with pytest.raises(tt.RefusedError, match="token"):
        tt.connect(address, ca=authority.ca, cert=cert)
    with pytest.raises((tt.RefusedError, tt.SessionLostError)):  # nginx answers 400
        tt.connect(address, token=token, ca=authority.ca)


def test_the_unit():
    path = DEPLOY / "teletensord.service"
    text = path.read_text(encoding="utf-8")
    assert flags_of(text.split("ExecStart=")[1].splitlines()[0]) <= flags_of(HELP)
    if not shutil.which("systemd-analyze"):
        pytest.skip("not installed: systemd-analyze")
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=30", str(path)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr


def test_the_supervisor_is_told(start_daemon, tmp_path):
    """READY, the canary's WATCHDOG, STOPPING: sd_notify's protocol."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(20)
        daemon = start_daemon(env={"NOTIFY_SOCKET": path})
        told, end = set(), time.monotonic() + 20
        while told != {"READY=1", "WATCHDOG=1"} and time.monotonic() < end:
            told.add(receiver.recv(100).decode())
        assert told == {"READY=1", "WATCHDOG=1"}
        assert daemon.terminate() == 0
        daemon.stop = lambda: ""
        while (last := receiver.recv(100).decode()) != "STOPPING=1":
            assert last == "WATCHDOG=1"


@pytest.mark.parametrize("name", ["kubernetes/teletensor.yaml", "monitoring/prometheus.yml", "compose.yaml",
                                  "nginx.conf"])
def test_flags_that_files_name_exist(name):
    used = flags_of((DEPLOY / name).read_text(encoding="utf-8"))
    assert used - flags_of(HELP) <= {"--role"}


def test_alerts_name_metrics_that_exist(start_daemon):
    from support.http import ask
    daemon = start_daemon("--http", "127.0.0.1:0")
    page = ask(daemon.http, "/metrics").text
    for metric in set(re.findall(r"teletensor_[a-z_]+", (DEPLOY / "monitoring/alerts.yml").read_text())):
        assert f"\n{metric}" in "\n" + page, metric
