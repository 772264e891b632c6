"""Two daemons whose sessions move from one to the other."""

import contextlib
import subprocess
import sys

from teletensor._connection.transport import CallError, open_transport
from teletensor._tools.admin import Admin

from support.daemon import wait_until
from support.daemons import start_daemons
from support.proxy import Proxy

# A daemon that is killed restores its sessions from a moment earlier; clients send later commands again.
FLAGS = ("--lease", "120", "--restart", "60", "--drain", "60", "--peer-patience", "60")
SNAPSHOTS = ("--snapshot-every", "0.5")
OTHER = {"a": "b", "b": "a"}


def cli(*words):
    return [sys.executable, "-m", "teletensor.cli", *words]


def run(*words):
    """Runs a command; returns (exit status, output, errors)."""
    done = subprocess.run(cli(*words), capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


@contextlib.contextmanager
def admin(daemon):
    connection = open_transport(daemon.unix)
    try:
        yield Admin(connection)
    finally:
        connection.close()


def sessions(daemon):
    with admin(daemon) as asked:
        return asked.sessions()[0]


def number_of(daemon, name):
    (found,) = (each["id"] for each in sessions(daemon) if each["name"] == name)
    return found


def connected(daemon, peer):
    return f'event=peer_connected peer="{peer}"' in daemon.log


def linked(pair):
    """Returns whether the two daemons are connected."""
    return all(daemon.log.count(f'event=peer_connected peer="{peer}"')
               > daemon.log.count(f'event=peer_disconnected peer="{peer}"')
               for daemon, peer in ((pair.a, "b"), (pair.b, "a")))


class Pair:
    """Two daemons that accept each other's sessions, and the network between them."""

    def __init__(self, start_daemon, *flags, own=None):
        self.link = None

        def through(address):
            self.link = self.link or Proxy(address, tcp=True)
            return self.link.address

        self.a, self.b = start_daemons(
            start_daemon, 2, *FLAGS, *(flags or SNAPSHOTS), through=through,
            own=own or (lambda name: ("--move-from", OTHER[name])))
        self.wait_connected()

    def wait_connected(self):
        wait_until(lambda: connected(self.a, "b") and connected(self.b, "a"), what="a connection")

    def crash(self, name):
        """Kills one of them with kill -9, and starts another process in its place."""
        daemon = getattr(self, name)
        daemon.crash()
        self.link.target = self.b.peers
        self.link.cut()

    def move(self, session, source):
        """Moves a session by the command; returns its exit status, output and errors."""
        return run("move", session, "--to", OTHER[source], "--address", getattr(self, source).unix)

    def counts(self):
        return len(sessions(self.a)), len(sessions(self.b))


def begins(pair, source):
    """Moves the only session. False: the cut came first, and the daemons are just connecting again, or the session is
    still being brought to rest for the move that was cut."""
    daemon = getattr(pair, source)
    try:
        with admin(daemon) as asked:
            asked.move(sessions(daemon)[0]["id"], OTHER[source])
    except CallError as error:
        assert "just now" in str(error) or "for an earlier move" in str(error)
        return False
    return True


def moved(pair, source):
    """Requests a move of the only session. Returns whether the daemon reported that it has moved."""
    try:
        with admin(getattr(pair, source)) as asked:
            asked.move(sessions(getattr(pair, source))[0]["id"], OTHER[source])
    except CallError:
        return False
    return True


def refusal(pair, source="a", to=None, timeout=0.0):
    """The reason why the only session of that daemon cannot be moved."""
    daemon = getattr(pair, source)
    try:
        with admin(daemon) as asked:
            asked.move(sessions(daemon)[0]["id"], to or OTHER[source], timeout)
    except CallError as error:
        return str(error)
    raise AssertionError("the session has moved")
