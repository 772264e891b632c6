"""utils.collect_env: what a report of a fault needs to say."""

import os
import subprocess
import sys


def test_an_open_session(tt):
    from teletensor.utils import collect_env

    found = collect_env.get_env_info()
    session = tt.current_session()
    assert found.client_version == tt.__version__ and found.transport == session.transport
    assert found.daemon == f"teletensord {session.server_version} at {session.address}"
    assert found.devices.startswith("cpu") and found.daemon_protocol == str(session.protocol)
    text = collect_env.get_pretty_env_info()
    assert f"Daemon: {found.daemon}\n" in text and "[pip3] numpy==" in text
    assert text.count("\n") == len(found) - 1 + len(found.pip_packages.splitlines())


def printed(**settings):
    made = subprocess.run([sys.executable, "-m", "teletensor.utils.collect_env"], text=True, capture_output=True,
                          timeout=120, env={**os.environ, **settings}, check=True)
    return made.stdout


def test_the_command(shared_daemon, tmp_path):
    text = printed(TELETENSOR_ADDRESS=shared_daemon.unix)
    assert text.startswith("Collecting environment information...\nteletensor version: ")
    assert f" at {shared_daemon.unix}\n" in text and f"TELETENSOR_ADDRESS={shared_daemon.unix}" in text
    text = printed(TELETENSOR_ADDRESS=shared_daemon.unix, TELETENSOR_TOKEN="very secret")
    assert "the token is unknown" in text and "very secret" not in text
    text = printed(TELETENSOR_ADDRESS=f"unix:{tmp_path}/nothing.sock")  # the report tells why there is no daemon
    assert "Daemon: cannot be used: " in text and "nothing.sock" in text and "Devices: N/A" in text
