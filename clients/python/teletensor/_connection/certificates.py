"""The command `teletensor cert`: makes a certificate authority and the certificate of a daemon with the
openssl program."""

from __future__ import annotations

import argparse
import ipaddress
import os
import pathlib
import re
import secrets
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

from .._sessions.errors import TeletensorError
from .._tools.operate import number

__all__ = ["add_command", "peer_files"]

_AUTHORITY_DAYS = 3650
_DAYS = 825  # the longest validity in days that all systems accept
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,250}[A-Za-z0-9_])?")
_EXTENSIONS = """subjectAltName={}
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage={}
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


def _host(text: str) -> str:
    """Checks the name of a host and returns it as openssl reads it: "IP:10.0.0.1" or "DNS:the-box"."""
    try:
        return f"IP:{ipaddress.ip_address(text)}"
    except ValueError:
        if _NAME.fullmatch(text):
            return f"DNS:{text}"
    raise argparse.ArgumentTypeError(f"expected a host's name or IP address, without a port, not {text!r}")


def _openssl(*arguments: str | pathlib.Path) -> None:
    try:
        done = subprocess.run(["openssl", *map(str, arguments)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, umask=0o077, check=False)
    except FileNotFoundError:
        raise TeletensorError("the openssl program is not on PATH; install it (Debian: apt install openssl)"
                              ) from None
    if done.returncode != 0:
        raise TeletensorError("openssl: " + done.stderr.decode(errors="replace").strip())


def _authority(made: pathlib.Path) -> None:
    _openssl("req", "-x509", *_KEY, "-days", str(_AUTHORITY_DAYS), "-subj", "/CN=teletensor authority",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign",
             "-keyout", made / "ca.key", "-out", made / "ca.pem")


def _issue(made: pathlib.Path, name: str, authority: pathlib.Path, hosts: list[str], usage: str,
           days: int) -> None:
    """Makes NAME.key and NAME.pem, signed by the authority."""
    request, extensions = made / "request", made / "extensions"
    extensions.write_text(_EXTENSIONS.format(",".join(hosts), usage), encoding="ascii")
    _openssl("req", *_KEY, "-subj", "/CN=teletensord", "-keyout", made / f"{name}.key", "-out", request)
    _openssl("x509", "-req", "-in", request, "-CA", authority / "ca.pem", "-CAkey", authority / "ca.key",
             "-set_serial", str(secrets.randbits(127)), "-days", str(days), "-extfile", extensions,
             "-out", made / f"{name}.pem")


def peer_files(names: list[str]) -> list[dict[str, str]]:
    """Makes a new authority, whose key is discarded, and a certificate for each daemon in `names`. Returns
    one dictionary per daemon: the contents of each file by the flag of teletensord that names it."""
    with tempfile.TemporaryDirectory() as name:
        made = pathlib.Path(name)
        _authority(made)
        for each in names:
            _issue(made, each, made, [f"DNS:{each}"], "serverAuth,clientAuth", _DAYS)
        return [{flag: (made / file).read_text(encoding="ascii")
                 for flag, file in (("--peer-cert", f"{each}.pem"), ("--peer-key", f"{each}.key"),
                                    ("--peer-ca", "ca.pem"))} for each in names]


def _cert(args: argparse.Namespace) -> int:
    folder = pathlib.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    has_key, has_certificate = (folder / "ca.key").exists(), (folder / "ca.pem").exists()
    if has_key != has_certificate:
        raise TeletensorError(f"{folder} has one of ca.pem and ca.key without the other: bring the other "
                              "one, or give another folder by --output")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        made = pathlib.Path(name)
        if not has_key:
            _authority(made)
        name = args.host[0].partition(":")[2] if args.peer else "server"
        if name == "ca":
            raise TeletensorError("ca.pem would replace the file of the authority: give another name first")
        _issue(made, name, folder if has_key else made, args.host,
               "serverAuth,clientAuth" if args.peer else "serverAuth", args.days)
        for file in ("ca.key", "ca.pem", f"{name}.key", f"{name}.pem"):
            if (made / file).exists():
                if file.endswith(".pem"):
                    (made / file).chmod(0o644)
                os.replace(made / file, folder / file)
    hosts = ", ".join(host.partition(":")[2] for host in args.host)
    users, flags = (("all daemons", "--peer-cert and --peer-key") if args.peer else
                    ("clients", "--tls-cert and --tls-key"))
    place = "--peer-ca" if args.peer else "ca=, TELETENSOR_CA"
    print(f"{folder / 'ca.pem'}: {'the authority of before' if has_key else 'a new authority'}; {users} "
          f"need this file ({place})\n"
          f"{folder / 'ca.key'}: its key; keep it secret, it makes further certificates\n"
          f"{folder / name}.pem, {folder / name}.key: for {hosts}, {args.days} days; teletensord "
          f"{flags} take them")
    return 0


def add_command(commands: Any) -> Callable[[argparse.Namespace], int]:
    """Adds the parser of the command; returns the function that runs it."""
    parser = commands.add_parser("cert", help="makes an authority (or takes the one that is there) and a "
                                              "certificate for a daemon's machine")
    parser.add_argument("host", type=_host, nargs="+",
                        help="names and IP addresses by which clients connect")
    parser.add_argument("--peer", action="store_true",
                        help="a certificate that daemons show each other, HOST.pem and HOST.key; the "
                             "first host is the daemon's --peer-name")
    parser.add_argument("--output", default=".", metavar="FOLDER",
                        help="of ca.pem, ca.key, server.pem and server.key [.]")
    parser.add_argument("--days", type=number(1, _AUTHORITY_DAYS), default=_DAYS,
                        help=f"the certificate's term [{_DAYS}]")
    return _cert
