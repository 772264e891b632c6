"""Users of the machine on the daemon's own UNIX socket: the kernel identifies them (SO_PEERCRED)."""

import json
import os
import pwd
import select
import shutil
import subprocess
import sys
import tempfile
import textwrap

import pytest
from support.daemon import READY, binary, wait_until
from support.users import need_two_users

need_two_users()

# A user without an account, in each run of the tests another one: the name of its default folder is fixed.
OTHER = 20_000 + os.getpid() % 40_000
NAMED = pwd.getpwnam("daemon").pw_uid
# All modules are loaded before the user changes, because other users may not be able to read the checkout.
START = """
import contextlib, os, sys
import numpy as np
import teletensor as tt
from teletensor._connection import native as _native
import teletensor.cli
with contextlib.suppress(Exception):
    _native.wire()
os.setgroups([])
os.setresgid({uid}, {uid}, {uid})
os.setresuid({uid}, {uid}, {uid})
address = sys.argv[1]
"""


def act(uid, code, daemon):
    """Runs it as that user; (status, stdout, stderr)."""
    done = subprocess.run([sys.executable, "-c", START.format(uid=uid) + textwrap.dedent(code), daemon.unix],
                          capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def reachable(daemon, mode):
    """Opens the folder of a test to other users, as an administrator may have done."""
    os.chmod(daemon.folder, 0o755)
    if mode:
        os.chmod(daemon.socket, mode)
    return daemon


COMPUTE = """
with tt.connect(address, name="theirs") as s:
    x = tt.arange(300000, dtype=tt.float32)
    print("sum", float((x.numpy() * 0 + 1).sum()), flush=True)
"""


def test_others_are_refused_whatever_the_mode(start_daemon, tt):
    daemon = reachable(start_daemon(), 0o666)
    status, out, err = act(OTHER, COMPUTE, daemon)
    assert status != 0 and "sum" not in out and "SessionLostError" in err
    wait_until(lambda: f"event=socket_user_refused uid={OTHER}" in daemon.log, what="it is in the log")
    with tt.connect(daemon.unix):
        assert (tt.ones(3) * 1).tolist() == [1.0] * 3


def test_the_mode_alone_refuses_them_too(start_daemon):
    daemon = reachable(start_daemon(), None)
    assert os.stat(daemon.socket).st_mode & 0o777 == 0o600
    assert act(OTHER, COMPUTE, daemon)[0] != 0
    assert "socket_user_refused" not in daemon.log


def test_others_are_known_by_their_names(start_daemon, tt):
    daemon = reachable(start_daemon("--socket-users"), None)
    assert os.stat(daemon.socket).st_mode & 0o777 == 0o666
    with tt.connect(daemon.unix, name="private") as own:
        kept = tt.ones(1 << 20)
        own.synchronize()
        for uid, user in ((NAMED, "daemon"), (OTHER, f"uid-{OTHER}")):
            status, out, err = act(uid, """
                import io, json
                def cli(*words):
                    out = io.StringIO()
                    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                        try:
                            status = teletensor.cli.main([*words, "--address", address])
                        except SystemExit as end:
                            status = end.code
                    return status, out.getvalue()
                with tt.connect(address, name="theirs") as s:
                    x = tt.tensor(np.arange(300000, dtype=np.float32))
                    print(json.dumps({"sum": float((x.numpy() * 0 + 1).sum()), "seen": cli("sessions", "--json")[1],
                                      "kill": cli("kill", "1"),
                                      "token": cli("token", "create", "me", "--role", "admin")}))
            """, daemon)
            assert status == 0, err
            found = json.loads(out)
            assert found["sum"] == 300000.0
            assert "private" not in found["seen"] and '"theirs"' in found["seen"] and f'"{user}"' in found["seen"]
            assert found["kill"][0] == 1 and "no session 1" in found["kill"][1]
            assert found["token"][0] == 1 and "not for the role user" in found["token"][1]
        assert kept.sum().item() == 1 << 20
    assert "socket_user_refused" not in daemon.log


def test_a_token_says_more(start_daemon):
    daemon = reachable(start_daemon("--socket-users"), None)
    made = subprocess.run([sys.executable, "-m", "teletensor.cli", "token", "create", "bob", "--address", daemon.unix],
                          capture_output=True, text=True, timeout=60)
    for token, what in ((made.stdout.strip(), "session_opened"), ("tt_" + "0" * 64, "call_refused")):
        act(OTHER, f"tt.connect(address, token={token!r}).close()", daemon)
        wait_until(lambda what=what: what in daemon.log, what="it is in the log")
    assert 'user="bob"' in daemon.log and f'user="uid-{OTHER}"' not in daemon.log


# Connects to the socket as one user id after another. A connection has made the handshake of HTTP/2, so it has
# reached a gRPC server. It answers pings, so gRPC does not close it while it is held.
CROWD = """
import os, select, socket, struct, sys
path, hold, count = sys.argv[1], sys.argv[2] == "hold", int(sys.argv[3])
SETTINGS, PING, ACK = 4, 6, 1
HEAD = struct.Struct(">BHBBL")

class Connection:
    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.received, self.greeted, self.over = b"", False, False

    def greet(self):
        self.socket.connect(path)
        try:
            self.socket.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + HEAD.pack(0, 0, SETTINGS, 0, 0))
            while not self.greeted and not self.over:
                self.read()
        except OSError:
            self.over = True
        return self.greeted

    def read(self):
        try:
            part = self.socket.recv(4096)
        except ConnectionResetError:
            part = b""
        self.over = not part
        self.received += part
        while len(self.received) >= 9:
            high, low, kind, flags, _ = HEAD.unpack(self.received[:9])
            end = 9 + (high << 16 | low)
            if len(self.received) < end:
                return
            payload, self.received = self.received[9:end], self.received[end:]
            self.greeted = self.greeted or kind == SETTINGS
            if kind == PING and not flags & ACK:
                self.socket.sendall(HEAD.pack(0, 8, PING, ACK, 0) + payload)

held, served = [], 0
for uid in range(200000, 200000 + count):
    os.seteuid(uid)
    made = Connection()
    greeted = made.greet()
    os.seteuid(0)
    served += greeted
    if hold and greeted:
        held.append(made)
    else:
        made.socket.close()
    for each in held:
        if select.select([each.socket], [], [], 0)[0]:
            each.read()
print(served, flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for socket in select.select([sys.stdin, *(each.socket for each in held if not each.over)], [], [])[0]:
        for each in held:
            if each.socket is socket:
                each.read()
print(sum(not each.over for each in held), flush=True)
"""


def crowd(daemon, how, count):
    """Starts a process that connects as `count` users without an account."""
    return subprocess.Popen([sys.executable, "-c", CROWD, daemon.socket, how, str(count)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_more_users_than_listeners_in_turn(start_daemon):
    daemon = reachable(start_daemon("--socket-users"), None)
    with crowd(daemon, "leave", 300) as users:
        served = int(users.stdout.readline())
        users.stdin.close()
    assert served == 300
    for uid in (NAMED, OTHER):
        status, out, err = act(uid, COMPUTE, daemon)
        assert status == 0 and "sum 300000.0" in out, err
    assert "socket_user_refused" not in daemon.log


def test_users_without_an_account_leave_room(start_daemon):
    daemon = reachable(start_daemon("--socket-users"), None)
    with crowd(daemon, "hold", 200) as users:
        assert int(users.stdout.readline()) == 128
        assert act(OTHER, COMPUTE, daemon)[0] != 0
        status, out, err = act(NAMED, COMPUTE, daemon)
        assert status == 0 and "sum 300000.0" in out, err
        users.stdin.close()
        assert int(users.stdout.readline()) >= 100  # the connections were held all the time
    assert f"event=socket_user_refused uid={OTHER}" in daemon.log
    wait_until(lambda: act(OTHER, COMPUTE, daemon)[0] == 0, what="a user without an account is served again")


@pytest.fixture
def folder_of_a_user():
    """A folder that the user OTHER can write. Removes that user's default folder of sockets as well."""
    folder, sockets = tempfile.mkdtemp(prefix="ttu-"), f"/tmp/teletensor-{OTHER}"
    os.chown(folder, OTHER, OTHER)
    assert not os.path.lexists(sockets)
    yield folder
    for path in (folder, sockets):
        if os.path.islink(path):
            os.unlink(path)
        shutil.rmtree(path, ignore_errors=True)


def environment(folder):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TELETENSOR", "XDG_"))}
    return {**env, "HOME": folder, "TMPDIR": folder}


DEFAULT = """
import json
from teletensor._connection.daemon import runtime_dir
try:
    folder = str(runtime_dir())
    with tt.connect() as s:
        print(json.dumps({"folder": folder, "address": s.address, "sum": tt.ones(3).sum().item()}))
except tt.TeletensorError as error:
    print(json.dumps({"error": str(error)}))
"""


def as_other(code, env):
    done = subprocess.run([sys.executable, "-c", START.format(uid=OTHER) + code, ""], env=env,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_daemon_and_client_agree_on_the_default_socket(folder_of_a_user):
    env = environment(folder_of_a_user)
    # Other users may not be able to enter the folder of the binary, so the descriptor names it.
    program = os.open(binary(), os.O_RDONLY)
    daemon = subprocess.Popen([f"/proc/self/fd/{program}", "--state-dir", folder_of_a_user], env=env, user=OTHER,
                              group=OTHER, extra_groups=[], pass_fds=[program], cwd="/", stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
    try:
        assert select.select([daemon.stdout], [], [], READY)[0], "the daemon is not ready"
        assert f" unix=/tmp/teletensor-{OTHER}/teletensor.sock" in daemon.stdout.readline()
        assert as_other(DEFAULT, env) == {"folder": f"/tmp/teletensor-{OTHER}", "sum": 3.0,
                                          "address": f"unix:/tmp/teletensor-{OTHER}/teletensor.sock"}
    finally:
        daemon.terminate()
        daemon.wait()
        daemon.stdout.close()
        os.close(program)


@pytest.mark.parametrize("fault", ["link", "owner", "mode"])
def test_a_default_folder_that_others_could_use_is_refused(folder_of_a_user, fault):
    sockets = f"/tmp/teletensor-{OTHER}"
    if fault == "link":
        os.symlink(folder_of_a_user, sockets)
    else:
        os.mkdir(sockets)
        os.chmod(sockets, 0o755 if fault == "mode" else 0o700)
        os.chown(sockets, OTHER if fault == "mode" else NAMED, -1)
    found = as_other(DEFAULT, environment(folder_of_a_user))
    assert found == {"error": f"{sockets} is not a directory that only this user can open"}
