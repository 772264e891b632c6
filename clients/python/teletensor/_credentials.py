"""How a client reaches a daemon and says who it is: address, TLS, token. The one place that makes a
channel and the metadata of its calls.

A connection is encrypted unless it stays on this machine: "host:port" means TLS where host is not
loopback, "tls://host:port" always.
"""

from __future__ import annotations

import ipaddress
import os
import pathlib
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc

__all__ = ["Credentials", "credentials_of"]

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Credentials:
    """What a transport needs besides its address. PEM texts; never printed."""

    target: str  # as gRPC names it: "host:port", or "unix:" and a path escaped as in a URI
    tls: bool
    token: str | None = field(default=None, repr=False)
    ca: bytes | None = field(default=None, repr=False)  # None: the system's authorities
    certificate: bytes | None = field(default=None, repr=False)  # of this client (mTLS)
    key: bytes | None = field(default=None, repr=False)

    def channel(self, options: Sequence[tuple[str, str | int]]) -> grpc.Channel:
        """A channel of grpcio's."""
        import grpc

        if not self.tls:
            return grpc.insecure_channel(self.target, options=options)
        tls = grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)
        return grpc.secure_channel(self.target, tls, options=options)

    def metadata(self) -> list[tuple[str, str]]:
        """Of every call."""
        return [("authorization", f"Bearer {self.token}")] if self.token else []


def _loopback(host: str) -> bool:
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token(given: str | None) -> str | None:
    """The argument, TELETENSOR_TOKEN, or what the file TELETENSOR_TOKEN_FILE holds."""
    if given is None:
        given = os.environ.get("TELETENSOR_TOKEN")
    path = os.environ.get("TELETENSOR_TOKEN_FILE")
    if given is None and path:
        given = pathlib.Path(path).read_text(encoding="ascii", errors="replace")
    if given is not None and not isinstance(given, str):
        raise TypeError("a token is text")
    given = given.strip() if given else None
    if given and not (given.isascii() and given.isprintable() and len(given) <= 1000):
        raise ValueError("a token is printable ASCII on one line, at most 1,000 characters")
    return given or None


def _check(address: str) -> None:
    """ValueError for what gRPC would take for something else (port 65537 for port 1), or log."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        size = len(os.fsencode(path))
        if not 0 < size < 108:
            raise ValueError(f"address {address[:200]!r}: the path of a UNIX socket has 1 to 107 bytes, "
                             f"not {size}")
        if "," in path or "\0" in path:  # a comma separates the addresses of one target, escaped or not
            raise ValueError(f"address {address!r}: gRPC cannot name the path of a socket that has a comma "
                             "or a NUL byte")
        return
    host, _, port = address.removeprefix("tls://").rpartition(":")
    number = int(port[:9]) if port.isascii() and port.isdecimal() else 0
    if not (host and host.isprintable() and 0 < number < 65536):
        raise ValueError(f"address {address[:200]!r}: expected host:port (1 to 65535), tls://host:port, "
                         f"unix:/path or a path")


def _pem(given: Path | None, variable: str) -> bytes | None:
    path = given if given is not None else os.environ.get(variable)
    return pathlib.Path(path).read_bytes() if path else None


def credentials_of(address: str, token: str | None = None, ca: Path | None = None,
                   cert: tuple[Path, Path] | None = None) -> Credentials:
    """The credentials for "host:port", "tls://host:port", "unix:/path" or a path.

    Files that are not given are those that TELETENSOR_CA, TELETENSOR_CERT and TELETENSOR_KEY name.
    """
    token = _token(token)
    if address.startswith("/"):
        address = "unix:" + address
    _check(address)
    if address.startswith("unix:"):
        path = os.fsencode(address.removeprefix("unix:"))
        return Credentials("unix:" + urllib.parse.quote(path), False, token)
    target = address.removeprefix("tls://")
    if target == address and _loopback(address.rpartition(":")[0]):
        return Credentials(target, False, token)
    certificate, key = cert if cert is not None else (None, None)
    return Credentials(target, True, token, _pem(ca, "TELETENSOR_CA"),
                       _pem(certificate, "TELETENSOR_CERT"), _pem(key, "TELETENSOR_KEY"))
