"""How a client reaches a daemon and identifies itself: address, TLS, token. This is the only module that
creates gRPC channels and the metadata of their calls.

A connection is encrypted unless it stays on this machine: "host:port" uses TLS if the host is not a
loopback address, or if an authority or a certificate is given; "tls://host:port" always uses TLS.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import pathlib
import stat
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .notices import tell

if TYPE_CHECKING:
    import grpc

__all__ = ["Credentials", "checked_address", "credentials_of", "silent_grpc", "token_file_warning"]

Path = str | os.PathLike[str]
_EXPECTED = ("expected host:port (such as localhost:7420; a port is 1 to 65535), tls://host:port, "
             "unix:/path or a path")


_VERBOSITY = "GRPC_VERBOSITY"


@contextlib.contextmanager
def silent_grpc() -> Iterator[None]:
    """gRPC reads the variable once: grpcio when it is imported, gRPC C++ when the process makes its first
    channel. Otherwise it writes lines about a failed handshake to stderr; errors tell its cause (`reach`).
    Child processes, such as a daemon, must not inherit it: they would not log why they end."""
    if _VERBOSITY in os.environ:
        yield
        return
    os.environ[_VERBOSITY] = "NONE"
    try:
        yield
    finally:
        os.environ.pop(_VERBOSITY, None)


@dataclass(frozen=True)
class Credentials:
    """Everything that a transport needs besides the address. Certificates and keys are PEM texts; secrets
    are never printed."""

    target: str  # as gRPC writes it: "host:port", or "unix:" and a path escaped as in a URI
    tls: bool
    token: str | None = field(default=None, repr=False)
    ca: bytes | None = field(default=None, repr=False)  # None: the certificate authorities of the system
    certificate: bytes | None = field(default=None, repr=False)  # the client's own certificate (mTLS)
    key: bytes | None = field(default=None, repr=False)
    # The file that `ca` was read from, for messages.
    ca_file: str = field(default="", repr=False, compare=False)
    certificate_files: tuple[str, str] | None = field(default=None, repr=False, compare=False)
    token_source: str = field(default="", repr=False, compare=False)
    tls_reason: str = field(default="", repr=False, compare=False)  # empty if the host is this machine

    def channel(self, options: Sequence[tuple[str, str | int]]) -> grpc.Channel:
        """Creates a grpcio channel."""
        import grpc

        if not self.tls:
            return grpc.insecure_channel(self.target, options=options)
        tls = grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)
        return grpc.secure_channel(self.target, tls, options=options)

    def at(self, address: str) -> Credentials:
        """Returns the same credentials for `address`, to which the daemon has moved a session.

        Raises ValueError if a connection to a remote daemon would become a connection to this machine,
        where another program may listen on the port.
        """
        _check(address)
        here = address.startswith("unix:") or _loopback(address.removeprefix("tls://").rpartition(":")[0])
        if here and not (self.target.startswith("unix:") or _loopback(self.target.rpartition(":")[0])):
            raise ValueError(f"{address} is an address of this machine, and the session was on another "
                             "one: its daemon needs --advertise")
        if address.startswith("unix:"):
            path = os.fsencode(address.removeprefix("unix:"))
            return replace(self, target="unix:" + urllib.parse.quote(path), tls=False, tls_reason="")
        ca, ca_file = (self.ca, self.ca_file) if self.ca else _pem(None, "TELETENSOR_CA")
        reason = _why_tls(address, ca_file, (self.certificate_files or ("",))[0])
        return replace(self, target=address.removeprefix("tls://"), tls=reason is not None,
                       ca=ca if reason is not None else self.ca, ca_file=ca_file, tls_reason=reason or "")

    def metadata(self) -> list[tuple[str, str]]:
        """The metadata that every call sends."""
        return [("authorization", f"Bearer {self.token}")] if self.token else []


def _loopback(host: str) -> bool:
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token(given: str | None) -> tuple[str | None, str]:
    """Returns the token, and which of these it is: the argument, or TELETENSOR_TOKEN, or the contents of
    the file that TELETENSOR_TOKEN_FILE names."""
    source = "the argument token"
    if given is None:
        given, source = os.environ.get("TELETENSOR_TOKEN"), "TELETENSOR_TOKEN"
    path = os.environ.get("TELETENSOR_TOKEN_FILE")
    if given is None and path:
        contents = _contents(path, "TELETENSOR_TOKEN_FILE", "`teletensor token create NAME --output FILE` "
                             "of the administrator writes one")
        given, source = contents.decode("ascii", errors="replace"), path
        _warn_of(path)
    if given is not None and not isinstance(given, str):
        raise TypeError("token: expected a str")
    given = given.strip() if given else None
    if given and not (given.isascii() and given.isprintable() and len(given) <= 1000):
        raise ValueError("a token is printable ASCII on one line, at most 1,000 characters")
    return (given, source) if given else (None, "")


def token_file_warning(source: str) -> str:
    """Returns a warning about the file mode of a token's file, or "" if the mode is right or the token is
    not from a file."""
    try:
        mode = os.stat(source).st_mode
    except (OSError, ValueError):
        return ""
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return ""
    return f"other users can read {source} (mode {stat.S_IMODE(mode):04o}): chmod 600 {source}"


@functools.cache  # once per process
def _warn_of(path: str) -> None:
    if warning := token_file_warning(path):
        tell("the token may be known to others: %s", warning)


def _check(address: str) -> None:
    """Raises ValueError for addresses that gRPC would misread (port 65537 as port 1) or write to the
    log."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        size = len(os.fsencode(path))
        if not 0 < size < 108:
            raise ValueError(f"address {address[:200]!r}: the path of a UNIX socket has 1 to 107 bytes, "
                             f"not {size}")
        # gRPC separates the addresses of one target by commas, escaped or not
        if "," in path or "\0" in path:
            raise ValueError(f"address {address!r}: gRPC cannot name the path of a socket that has a comma "
                             "or a NUL byte")
        return
    scheme, separator, rest = address.partition("://")
    if separator and scheme != "tls":
        raise ValueError(f"address {address[:200]!r}: {_scheme(scheme, rest)}")
    host, _, port = address.removeprefix("tls://").rpartition(":")
    number = int(port[:9]) if port.isascii() and port.isdecimal() else 0
    if not (host and host.isprintable() and 0 < number < 65536):
        raise ValueError(f"address {address[:200]!r}: {_EXPECTED}")


def _scheme(scheme: str, rest: str) -> str:
    """Returns what is wrong with the address "scheme://rest"."""
    if scheme.lower() in ("http", "https"):
        return ("a client does not speak HTTP, which is for the dashboard (--http); give the address of "
                "--listen, which teletensord prints as tcp= when it is ready")
    place = rest.partition("/")[0][:100] or "host:port"
    return (f"an address does not begin with {scheme[:20]}://; write {place} (TLS unless the host is this "
            f"machine) or tls://{place}")


def _contents(path: str, setting: str, cure: str) -> bytes:
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise type(error)(f"{setting} names {path}, which cannot be read ({error.strerror}): "
                          f"{cure}") from None


def _pem(given: Path | None, variable: str) -> tuple[bytes | None, str]:
    """Returns the text of a PEM file and the name of the file."""
    path = os.fspath(given) if given is not None else os.environ.get(variable)
    if not path:
        return None, ""
    setting = variable if given is None else "ca=" if variable == "TELETENSOR_CA" else "cert="
    cure = "`teletensor cert` writes ca.pem, and certificates with their keys"
    return _contents(path, setting, cure), path


def _why_tls(address: str, ca_file: str, certificate_file: str) -> str | None:
    """Returns why a TCP connection is encrypted ("" if the reason is that the host is not this machine), or
    None if it is not encrypted."""
    if address.startswith("tls://"):
        return "the address tls://"
    if not _loopback(address.rpartition(":")[0]):
        return ""
    if ca_file:
        return f"the authority {ca_file}"
    return f"the certificate {certificate_file}" if certificate_file else None


def checked_address(address: str) -> str:
    """Returns the address with "unix:" before a path. ValueError if it has none of the forms."""
    if address.startswith("/"):
        address = "unix:" + address
    _check(address)
    return address


def credentials_of(address: str, token: str | None = None, ca: Path | None = None,
                   cert: tuple[Path, Path] | None = None) -> Credentials:
    """The credentials for "host:port", "tls://host:port", "unix:/path" or a path.

    A file that is not given is taken from TELETENSOR_CA, TELETENSOR_CERT or TELETENSOR_KEY; "" means no
    file.
    """
    address = checked_address(address)
    if cert is not None and (isinstance(cert, (str, bytes, os.PathLike)) or len(cert) != 2):
        raise TypeError(f"cert: expected a pair of paths, (certificate, key), not {cert!r}")
    token, source = _token(token)
    if address.startswith("unix:"):
        path = os.fsencode(address.removeprefix("unix:"))
        return Credentials("unix:" + urllib.parse.quote(path), False, token, token_source=source)
    target = address.removeprefix("tls://")
    authority, ca_file = _pem(ca, "TELETENSOR_CA")
    certificate, certificate_file = _pem(cert and cert[0], "TELETENSOR_CERT")
    key, key_file = _pem(cert and cert[1], "TELETENSOR_KEY")
    reason = _why_tls(address, ca_file, certificate_file)
    if reason is None:
        return Credentials(target, False, token, token_source=source)
    return Credentials(target, True, token, authority, certificate, key, ca_file,
                       (certificate_file, key_file) if certificate and key else None, source, reason)
