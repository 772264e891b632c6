"""Photographs the dashboard of a real daemon while alice and bob work: docs/images/dashboard*.png.

`make pictures` runs it. It needs chromium and chromedriver (deploy/packages-browser.txt), and five minutes,
so that the charts have something to show.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests"))
from support.browser import Browser, missing, sign_in  # noqa: E402
from support.daemon import Daemon  # noqa: E402

CONFIG = """
host_memory = "2GiB"
disk_memory = "4GiB"
user_disk_memory = "1GiB"
user_memory = "512MiB"
slow_ms = 100
lanes = 2

[users.alice]
memory = "256MiB"
sessions = 5
weight = 2.0
"""
PROGRAMS = {
    "train.py": """
import time
import teletensor as tt
from teletensor import nn

tt.connect(name="classifier").__enter__()
images, labels = tt.randn(4096, 784), tt.randint(0, 10, (4096,))
model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = tt.optim.Adam(model.parameters(), lr=1e-3)
encoder = model[0].weight.detach()
tt.publish("encoder/weight", encoder, users=["bob"])

def epoch():
    for first in range(0, len(images), 256):
        batch = slice(first, first + 256)
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()

while True:
    print("loss", epoch(), flush=True)
    time.sleep(1)
""",
    "denoise.py": """
import time
import teletensor as tt
from teletensor import nn

tt.connect(name="denoiser").__enter__()
photos = tt.randn(48, 3, 128, 128)
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 3, padding=1))

while True:
    for noise in range(12):
        clean = model(photos + 0.1 * noise * tt.randn_like(photos))
        print("error", (clean - photos).square().mean().item(), flush=True)
        time.sleep(0.5)
    covariance = tt.randn(2500, 2500)
    print("scale", (covariance @ covariance).diagonal().mean().item(), flush=True)
    del covariance, clean
    time.sleep(8)
""",
    "evaluate.py": """
import time
import teletensor as tt

tt.connect(name="evaluation").__enter__()
scores = tt.randn(200, 10000)
best = scores.topk(5).values
try:
    print(tt.linalg.inv(tt.zeros(3, 3)).sum().item())
except RuntimeError as error:
    print("error:", error)
print("done", best.sum().item(), flush=True)
time.sleep(3600)
""",
}


def token_of(daemon: Daemon, user: str, role: str = "user") -> str:
    done = subprocess.run([sys.executable, "-m", "teletensor.cli", "token", "create", user, "--role", role,
                           "--address", daemon.unix], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def start(folder: Path, name: str, daemon: Daemon, token: str) -> subprocess.Popen[bytes]:
    (folder / name).write_text(PROGRAMS[name].lstrip(), encoding="utf-8")
    environment = {**os.environ, "TELETENSOR_ADDRESS": daemon.tcp, "TELETENSOR_TOKEN": token}
    # The daemon reports its lines as "train.py:7", without the folder.
    run = f"import sys; sys.argv = [{name!r}]; exec(compile(open({name!r}).read(), {name!r}, 'exec'))"
    return subprocess.Popen([sys.executable, "-c", run], cwd=folder, env=environment,
                            stdout=subprocess.DEVNULL)


def photograph(daemon: Daemon, token: str, seconds: float) -> None:
    images = DOCS / "images"
    browser = Browser()
    try:
        browser.emulate(1280, 900)
        browser.go(f"http://{daemon.http}/")
        browser.wait(lambda: browser.script("return !document.getElementById('login').hidden"))
        browser.screenshot(images / "dashboard-login.png")
        sign_in(browser, daemon, token)
        browser.emulate(1280, 1350)
        time.sleep(seconds)
        browser.screenshot(images / "dashboard.png")
        browser.emulate(1280, 900, dark=True)
        time.sleep(3)  # the charts take the new colours with their next round
        browser.screenshot(images / "dashboard-dark.png")
        browser.emulate(390, 844, scale=2)
        time.sleep(3)
        browser.script("document.getElementById('users').previousElementSibling.scrollIntoView()")
        browser.screenshot(images / "dashboard-phone.png")
        browser.emulate(1280, 900)
        browser.click("#sessions tbody tr a")
        browser.wait(lambda: len(browser.rows("session-tensors")) > 0)
        browser.screenshot(images / "dashboard-session.png", whole=True)
    finally:
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300,
                        help="of work before the pictures (default: 300)")
    args = parser.parse_args()
    if missing():
        sys.exit(f"not installed: {missing()} (deploy/packages-browser.txt)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "daemon.toml").write_text(CONFIG, encoding="utf-8")
        daemon = Daemon("--http", "127.0.0.1:0", "--config", str(folder / "daemon.toml"), anonymous=False)
        alice = token_of(daemon, "alice")
        running = [start(folder, "train.py", daemon, alice), start(folder, "evaluate.py", daemon, alice),
                   start(folder, "denoise.py", daemon, token_of(daemon, "bob"))]
        try:
            time.sleep(args.seconds / 2)
            running[1].kill()  # its session stays, without a client
            photograph(daemon, token_of(daemon, "root", "admin"), args.seconds / 2)
        finally:
            for process in running:
                process.send_signal(signal.SIGKILL)
                process.wait()
            daemon.stop()


if __name__ == "__main__":
    main()
