"""Finds out why no daemon answers at an address, step by step below gRPC, and says how to repair it.

gRPC itself reports only "Deadline Exceeded", or a text that depends on version and transport. These checks
run only after a connection has failed, or if the user asks for them (`teletensor doctor`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import ssl
import stat
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._sessions.interrupt import Pending

if TYPE_CHECKING:
    from .credentials import Credentials

__all__ = ["Fault", "fault_of", "steps"]

# the time limit of each step, which allows for a lost packet that is sent again after a second
_SECONDS = 1.5
_MAX_NAMES = 8  # the maximum number of a certificate's names in a message
_FRAME = 9  # the length of an HTTP/2 frame header
_SETTINGS = 4  # the frame type SETTINGS of HTTP/2
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
_GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_ALERT = 0x15  # the first byte of a TLS server's answer to plain text
# Verification codes of OpenSSL (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED, _WRONG_NAME, _WRONG_IP = 9, 10, 62, 64
_READY = "which teletensord prints as {}= when it is ready"


class Fault(Exception):
    """A fault that was found; the message says how to repair it."""

    absent = silent = False


class Absent(Fault):
    """Nothing listens at the address; a daemon that is about to start looks the same."""

    absent = True


class Silent(Fault):
    """No daemon has answered in time or at all; a slow network and a busy daemon look the same."""

    silent = True


Step = tuple[str, Callable[[], str]]


def steps(credentials: Credentials) -> list[Step]:
    """Yields the conditions for a gRPC call in order: a name, and a function that returns what it found or
    raises Fault."""
    if credentials.target.startswith("unix:"):
        path = os.fsdecode(urllib.parse.unquote_to_bytes(credentials.target.removeprefix("unix:")))
        local = _Socket(path)
        return [("socket", local.look), ("protocol", local.talk)]
    port = _Port(credentials)
    return [("name", port.resolve), ("port", port.look),
            ("TLS" if credentials.tls else "protocol", port.talk)]


def fault_of(credentials: Credentials) -> Fault | None:
    """The first fault, or None if a daemon could be called."""
    try:
        for _, look in steps(credentials):
            look()
    except Fault as fault:
        return fault
    return None


class _Socket:
    """The steps for a UNIX socket."""

    def __init__(self, path: str) -> None:
        self._path = path

    def look(self) -> str:
        path = self._path
        try:
            mode = os.stat(path).st_mode
        except PermissionError:
            raise Fault(f"this user may not look into the folder of the socket {path}") from None
        except OSError:
            raise Absent(f"there is no socket {path}: start teletensord, or give its path, "
                         f"{_READY.format('unix')}") from None
        if not stat.S_ISSOCK(mode):
            raise Fault(f"{path} is not a socket: give the path of one, {_READY.format('unix')}")
        self._connect().close()
        return path

    def _connect(self) -> socket.socket:
        path = self._path
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_SECONDS)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            if isinstance(error, PermissionError):
                raise Fault(f"this user may not open the socket {path}: the daemon lets other users of its "
                            "machine in with --socket-users") from None
            if isinstance(error, TimeoutError | BlockingIOError):
                raise _silent(f"the daemon at {path}") from None
            raise Absent(f"nothing listens on the socket {path}, which a daemon has left behind: start "
                         "teletensord again") from None
        return connection

    def talk(self) -> str:
        with self._connect() as connection:
            said = _answer(connection, _PREFACE)
        if not _is_settings(said):
            raise _strange(f"the socket {self._path}", said)
        return "HTTP/2"


class _Port:
    """The steps for a TCP port."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        host, _, port = credentials.target.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._where = f"port {port} of {self._host}"
        self._found: list[Any] = []

    def resolve(self) -> str:
        host = self._host
        try:
            self._found = Pending(functools.partial(
                socket.getaddrinfo, host, self._port, type=socket.SOCK_STREAM)).result(_SECONDS)
        except TimeoutError:
            raise Silent(f"no name server answers for {host!r} within {_SECONDS:g} s: check the network, "
                         "or give the machine's IP address") from None
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a host's name"
            raise Fault(f"the name {host!r} is not known here ({reason}): check its spelling, or give the "
                        "machine's IP address") from None
        return ", ".join(dict.fromkeys(str(entry[4][0]) for entry in self._found))

    def look(self) -> str:
        with self._connect() as connection:
            return f"{connection.getpeername()[0]} port {self._port} takes connections"

    def _connect(self) -> socket.socket:
        """Connects to the first address that accepts the connection, as gRPC does."""
        if not self._found:
            self.resolve()
        failed = OSError()
        for family, kind, protocol, _, address in self._found:
            connection = socket.socket(family, kind, protocol)
            connection.settimeout(_SECONDS)
            try:
                connection.connect(address)
                return connection
            except OSError as error:
                connection.close()
                failed = error
        if isinstance(failed, ConnectionRefusedError):
            raise Absent(f"nothing listens on {self._where} (connection refused): start teletensord with "
                         f"--listen, or give its address, {_READY.format('tcp')}")
        if isinstance(failed, TimeoutError) or failed.errno == errno.ETIMEDOUT:
            raise Silent(f"{self._where} does not answer within {_SECONDS:g} s: a firewall drops what is "
                         "sent there, the machine is off, or the address is of another one")
        raise Fault(f"{self._where} cannot be reached ({failed.strerror or failed}): check the network")

    def talk(self) -> str:
        return self._encrypted() if self._credentials.tls else self._plain()

    def _plain(self) -> str:
        with self._connect() as connection:
            said = _answer(connection, _PREFACE)
        if _is_settings(said):
            return "plain text, HTTP/2"
        if self._is_tls(said):
            raise Fault(f"{self._where} speaks TLS, and this client plain text: use the "
                        f"address tls://{self._credentials.target}, with the authority of the daemon's "
                        "certificate as ca= or TELETENSOR_CA")
        raise self._foreign(self._to_http(said, self._connect))

    def _to_http(self, said: bytes, connect: Callable[[], socket.socket]) -> bytes:
        """The server's answer to HTTP/1, if its answer `said` to HTTP/2 was something else."""
        if said.startswith(b"HTTP/"):
            return said
        with contextlib.suppress(OSError, Fault), connect() as connection:
            return _answer(connection, _GET) or said
        return said

    def _foreign(self, said: bytes) -> Fault:
        """The fault for a server that is not a daemon and gave this answer."""
        if said.startswith(b"HTTP/"):
            return Fault(f"{self._where} speaks HTTP/1, as the daemon's dashboard does (--http): connect to "
                         f"the address of --listen, {_READY.format('tcp')}")
        return _strange(self._where, said)

    def _is_tls(self, said: bytes) -> bool:
        """Returns whether a server that gave this answer to plain text speaks TLS."""
        if said:
            return said[0] == _ALERT
        try:
            with self._handshake(_trusting()):
                return True
        except ssl.SSLError as error:  # an alert is a TLS message as well
            return "ALERT" in (error.reason or "")
        except OSError:
            return False

    def _handshake(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        return context.wrap_socket(self._connect(), server_hostname=self._host)

    def _encrypted(self) -> str:
        try:
            with self._handshake(self._context()) as connection:
                certificate, version = connection.getpeercert() or {}, connection.version()
                said = _answer(connection, _PREFACE)
        except ssl.SSLCertVerificationError as error:
            raise self._distrusted(error) from None
        except ssl.SSLError as error:
            raise self._no_handshake(error) from None
        except TimeoutError:
            raise _silent(self._where) from None
        except OSError:
            raise self._no_handshake(None) from None
        if not _is_settings(said):
            said = self._to_http(said, lambda: self._handshake(self._context()))
            raise self._foreign(said) if said else self._refused_client()
        return f"{version}, certificate of {_names(certificate)} until {certificate.get('notAfter')}"

    def _context(self) -> ssl.SSLContext:
        """The TLS context with the authorities that this client trusts and its own certificate."""
        c = self._credentials
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        if c.ca is None:
            context.load_default_certs()
        else:
            try:
                context.load_verify_locations(cadata=c.ca.decode("ascii", "replace"))
            except (ssl.SSLError, ValueError):
                raise Fault(f"{c.ca_file} holds no certificate of an authority (PEM): give the ca.pem that "
                            "`teletensor cert` has written, by ca= or TELETENSOR_CA") from None
        if c.certificate_files is not None:
            try:
                context.load_cert_chain(*c.certificate_files)
            except (ssl.SSLError, ValueError, OSError) as error:
                raise Fault(f"{' and '.join(c.certificate_files)} are no certificate of this client and "
                            f"its key ({getattr(error, 'reason', None) or error})") from None
        return context

    def _distrusted(self, error: ssl.SSLCertVerificationError) -> Fault:
        host, code = self._host, error.verify_code
        if code in (_WRONG_NAME, _WRONG_IP):
            return Fault(f"the daemon's certificate is for {self._names()}, not for {host}: connect by a "
                         f"name that it has, or make one with this name by `teletensor cert {host}`")
        if code in (_EXPIRED, _NOT_YET_VALID):
            when = "is over" if code == _EXPIRED else "has not begun"
            return Fault(f"the term of the daemon's certificate {when}: make another one by `teletensor "
                         f"cert {host}`, or set this machine's clock right")
        known = self._credentials.ca_file
        return Fault(
            f"the daemon's certificate is not signed by an authority in {known} ({error.verify_message}): "
            "give the ca.pem that was made with it by ca= or TELETENSOR_CA" if known else
            f"the daemon's certificate is not signed by an authority that this system knows "
            f"({error.verify_message}): give its authority's file by ca= or TELETENSOR_CA")

    def _names(self) -> str:
        """The names in a certificate that is valid except for its names."""
        context = self._context()
        context.check_hostname = False
        with contextlib.suppress(OSError), self._handshake(context) as connection:
            return _names(connection.getpeercert() or {})
        return "another name"

    def _refused_client(self, alert: str = "") -> Fault:
        """The fault for a server that speaks TLS and refuses this client. Without an alert the cause is
        not certain, because an overloaded server also ends connections, so the fault is silent."""
        own = self._credentials.certificate_files
        end = (f"TLS ends with {alert}" if alert else
               "it ends the connection, as an overloaded daemon does too")
        if own is None:
            fault = Fault(f"{self._where} seems to want a certificate of this client (--tls-client-ca): "
                          f"give one by cert= or TELETENSOR_CERT and TELETENSOR_KEY ({end})")
        else:
            fault = Fault(f"{self._where} does not take this client's certificate {own[0]}: it has to be "
                          f"signed by an authority in the daemon's --tls-client-ca ({end})")
        fault.silent = not alert
        return fault

    def _no_handshake(self, error: ssl.SSLError | None) -> Fault:
        reason = (error.reason if error is not None else None) or ""
        if "ALERT" in reason:
            return self._refused_client(reason)
        with self._connect() as connection:
            said = _answer(connection, _PREFACE)
        if self._is_tls(said):
            return self._refused_client()
        if not _is_settings(said):
            return self._foreign(self._to_http(said, self._connect))
        where = f"{self._where} speaks plain text, and this client TLS"
        if self._credentials.tls_reason == "":
            return Fault(f"{where}, as it always does off this machine: give teletensord --tls-cert and "
                         "--tls-key (`teletensor cert` makes them), or tunnel its socket by ssh")
        return Fault(f"{where}, because of {self._credentials.tls_reason}: leave that out, or give "
                     "teletensord --tls-cert and --tls-key (`teletensor cert` makes them)")


def _trusting() -> ssl.SSLContext:
    """A context that verifies nothing, to find out whether a server speaks TLS; no data are sent over
    it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _answer(connection: socket.socket, said: bytes) -> bytes:
    """Sends `said` and returns the first bytes of the answer; b"" if the server closes the connection.
    Raises Silent, or ssl.SSLError for an alert."""
    found = b""
    try:
        connection.sendall(said)
        while len(found) < _FRAME:
            part = connection.recv(256)
            if not part:
                break
            found += part
    except TimeoutError:
        if not found:
            raise _silent("what listens there") from None
    except ssl.SSLError:
        raise
    except OSError:  # the connection was reset
        pass
    return found


def _is_settings(said: bytes) -> bool:
    """Returns whether an answer is the frame with which an HTTP/2 connection begins."""
    return len(said) >= _FRAME and said[3] == _SETTINGS and said[5:_FRAME] == bytes(4)


def _silent(who: str) -> Silent:
    return Silent(f"{who} takes the connection, and says nothing within {_SECONDS:g} s: if it is a daemon, "
                 "it is stopped or overloaded")


def _strange(where: str, said: bytes) -> Fault:
    if said:
        return Fault(f"{where} is of another program than teletensord: to HTTP/2 it answers {said[:40]!r}")
    return Silent(f"{where} closes the connection without an answer to HTTP/2: it is of another program "
                  "than teletensord, or the daemon is overloaded")


def _names(certificate: dict[str, Any]) -> str:
    """The hosts for which a certificate is valid."""
    found = [str(value) for _, value in certificate.get("subjectAltName", ())]
    return ", ".join(found[:_MAX_NAMES]) + (", ..." if len(found) > _MAX_NAMES else "") or "no host"
