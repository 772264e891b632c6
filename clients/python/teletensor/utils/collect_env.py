"""Describes the client, the daemon and both machines, for reports of faults: `python -m
teletensor.utils.collect_env`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from typing import NamedTuple

from .. import _core
from .._names import absent as _absent
from .._sessions.errors import TeletensorError
from .._sessions.session import current_session
from ..version import __version__

__all__ = ["SystemEnv", "get_env_info", "get_pretty_env_info", "main"]

# The packages that the client uses or meets.
_PACKAGES = re.compile(r"teletensor.*|numpy|grpcio|protobuf|torch.*|safetensors|einops|einx|ray|"
                       r"cloudpickle|cryptography|ipython|jupyter.*|matplotlib|pandas|jax|tensorboardx?|"
                       r"onnx.*", re.I)


class SystemEnv(NamedTuple):
    """What is known; "" for what does not apply. `daemon` says why if no daemon can be used."""

    client_version: str
    protocol: str  # the protocols of the wire that the client speaks
    ops: str  # the number of ops that the client knows
    transport: str
    daemon: str
    daemon_protocol: str
    devices: str
    unsupported_ops: str
    settings: str  # the variables TELETENSOR_* of the environment, without those of tokens
    os: str
    libc_version: str
    python_version: str
    python_platform: str
    cpu_info: str
    pip_packages: str


def get_env_info() -> SystemEnv:
    """Collects everything. Connects to a daemon if no session is open, as the first tensor does."""
    core = f"{_core.PROTOCOL_MIN} to {_core.PROTOCOL}" if _core.PROTOCOL_MIN < _core.PROTOCOL else str(
        _core.PROTOCOL)
    transport, daemon, protocol, devices, missing = _daemon()
    return SystemEnv(
        client_version=__version__, protocol=core, ops=str(len(_core.op_table())), transport=transport,
        daemon=daemon, daemon_protocol=protocol, devices=devices, unsupported_ops=missing,
        settings=", ".join(f"{name}={value}" for name, value in sorted(os.environ.items())
                           if name.startswith("TELETENSOR") and "TOKEN" not in name),
        os=_system(), libc_version="-".join(filter(None, platform.libc_ver())),
        python_version=f"{sys.version} ({sys.maxsize.bit_length() + 1}-bit runtime)",
        python_platform=platform.platform(), cpu_info=_cpu(), pip_packages=_packages())


def _daemon() -> tuple[str, str, str, str, str]:
    try:
        session = current_session()
        gpus = {device.name: device.model for device in session._gpus}
        devices = [f"{name} ({gpus[name]})" if gpus.get(name) else name for name in session.devices]
        return (session.transport, f"teletensord {session.server_version} at {session.address}",
                str(session.protocol), ", ".join(devices), ", ".join(session.unsupported_ops))
    except (TeletensorError, RuntimeError, OSError, ValueError) as error:
        return "", f"cannot be used: {error}", "", "", ""


def _system() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:  # not Linux, or without the file
        name = f"{platform.system()} {platform.release()}"
    return f"{name} ({platform.machine()})"


def _cpu() -> str:
    model = platform.processor()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            found = re.search(r"^model name\s*:\s*(.*)$", file.read(), re.M)
            model = found.group(1) if found else model
    except OSError:
        pass
    return f"{model or platform.machine()}, {os.cpu_count()} cores"


def _packages() -> str:
    """The versions of installed packages that the client uses or meets, one a line."""
    found = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()
             if each.metadata["Name"] and _PACKAGES.fullmatch(each.metadata["Name"])}
    return "\n".join(f"[pip3] {name}=={found[name]}" for name in sorted(found, key=str.lower))


_TITLES = {
    "client_version": "teletensor version", "protocol": "Protocol of the client",
    "ops": "Ops of the client", "transport": "Transport", "daemon": "Daemon",
    "daemon_protocol": "Protocol of the session", "devices": "Devices",
    "unsupported_ops": "Ops that the daemon lacks", "settings": "Settings", "os": "OS",
    "libc_version": "Libc version", "python_version": "Python version",
    "python_platform": "Python platform", "cpu_info": "CPU of the client",
    "pip_packages": "Versions of relevant libraries",
}  # fmt: skip


def get_pretty_env_info() -> str:
    """The text of `get_env_info`, one line for each fact."""
    lines = []
    for name, value in get_env_info()._asdict().items():
        lines.append(f"{_TITLES[name]}:{chr(10) if name == 'pip_packages' else ' '}{value or 'N/A'}")
    return "\n".join(lines)


def main() -> None:
    """Prints what get_pretty_env_info returns."""
    print("Collecting environment information...")
    print(get_pretty_env_info())


_absent.attach(globals())

if __name__ == "__main__":
    main()
