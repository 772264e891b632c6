"""Access to a daemon: TLS, tokens, roles, sockets, and secrets that stay secret. SECURITY.md names these
tests."""

import contextlib
import http.client
import json
import os
import sqlite3
import ssl
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from support.daemon import HANG, binary
from support.http import ask
from support.raw import Raw, messages, nothing
from support.tls import Authority
from teletensor._connection.credentials import credentials_of

MIB = 1 << 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


def tls_flags(authority, *more):
    certificate, key = authority.issue("server")
    return ["--tls-cert", str(certificate), "--tls-key", str(key), *more]


def cli(daemon, *arguments, env=None):
    words = list(arguments) + ["--address", daemon.unix]
    return subprocess.run([sys.executable, "-m", "teletensor.cli", *words], capture_output=True, text=True,
                          timeout=60, env={**os.environ, **(env or {})})


def token_of(daemon, user, role="user", *more):
    done = cli(daemon, "token", "create", user, "--role", role, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refuses_to_start(*flags, status=1):
    """`status` is 2 if the daemon refuses its settings, before it opens anything."""
    done = subprocess.run([binary(), "--no-socket", *flags], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (done.returncode, done.stderr)
    return done.stderr


def test_off_loopback_needs_tls_and_a_token(authority, tmp_path):
    state = ["--state-dir", str(tmp_path / "state")]
    for flag, other in (("--listen", []), ("--http", ["--listen", "127.0.0.1:0"])):
        assert "TLS" in refuses_to_start(*state, *other, flag, "192.0.2.1:0", status=2)
        assert "token" in refuses_to_start(*state, *other, *tls_flags(authority), flag, "192.0.2.1:0")
    made = subprocess.run([binary(), *state, "--create-token", "alice:admin"], capture_output=True, text=True)
    assert made.returncode == 0 and made.stdout.startswith("tt_") and len(made.stdout.strip()) == 67
    # Now only the address is wrong: no user has the right to it here.
    assert "cannot listen" in refuses_to_start(*state, *tls_flags(authority), "--listen", "192.0.2.1:0")


def test_keys_that_others_can_read_are_refused(authority, tmp_path):
    certificate, key = authority.issue("careless")
    key.chmod(0o644)
    text = refuses_to_start("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--tls-cert",
                            str(certificate), "--tls-key", str(key))
    assert "chmod 600" in text


def test_tls_and_token(start_daemon, tt, authority, tmp_path):
    daemon = start_daemon(*tls_flags(authority))
    address, token = "tls://" + daemon.tcp, token_of(daemon, "alice")
    with tt.connect(address, token=token, ca=authority.ca) as s:
        x = tt.arange(4, dtype=tt.float32).requires_grad_()
        (x * x).sum().backward()
        assert x.grad.tolist() == [0.0, 2.0, 4.0, 6.0]
        big = tt.tensor(list(range(100_000)))
        assert int(big.numpy()[-1]) == 99_999
        found = json.loads(cli(daemon, "sessions", "--json").stdout)
        assert [f["user"] for f in found] == ["alice"]
        assert token not in repr(s) and token not in repr(s._transport.credentials)
    with pytest.raises(tt.RefusedError, match="token"):
        tt.connect(address, ca=authority.ca)
    with pytest.raises(tt.RefusedError, match="unknown"):
        tt.connect(address, token="tt_" + "0" * 64, ca=authority.ca)
    stranger = Authority(tmp_path / "other", "another authority")
    with pytest.raises(tt.SessionLostError):
        tt.connect(address, token=token, ca=stranger.ca)
    plain = Raw(daemon.tcp)  # no TLS at all
    with pytest.raises(grpc.RpcError):
        plain.describe()
    plain.close()


def test_token_from_environment_and_file(start_daemon, tt, authority, tmp_path, monkeypatch):
    daemon = start_daemon(*tls_flags(authority))
    file = tmp_path / "token"
    file.write_text(token_of(daemon, "bob") + "\n", encoding="ascii")
    monkeypatch.setenv("TELETENSOR_CA", str(authority.ca))
    monkeypatch.setenv("TELETENSOR_TOKEN_FILE", str(file))
    with tt.connect("tls://" + daemon.tcp):
        assert (tt.ones(3) * 1).tolist() == [1.0] * 3
    monkeypatch.setenv("TELETENSOR_TOKEN", "tt_wrong")
    with pytest.raises(tt.RefusedError):
        tt.connect("tls://" + daemon.tcp)


def test_mutual_tls(start_daemon, tt, authority, tmp_path):
    daemon = start_daemon(*tls_flags(authority, "--tls-client-ca", str(authority.ca)))
    address, token = "tls://" + daemon.tcp, token_of(daemon, "alice")
    with tt.connect(address, token=token, ca=authority.ca, cert=authority.issue("alice")):
        assert (tt.ones(3) * 1).tolist() == [1.0] * 3
    stranger = Authority(tmp_path / "other", "another authority")
    for cert in (None, stranger.issue("alice")):
        with pytest.raises(tt.SessionLostError):
            tt.connect(address, token=token, ca=authority.ca, cert=cert)
    with pytest.raises(tt.RefusedError, match="token"):  # a certificate alone is no user
        tt.connect(address, ca=authority.ca, cert=authority.issue("alice"))


def methods():
    """(full name, client streams, server streams) of all our services, from the descriptors."""
    for module in [*messages(), reflection_pb2]:
        for service in module.DESCRIPTOR.services_by_name.values():
            package = service.full_name.replace("ttwire", "teletensor")
            for method in service.methods:
                yield f"/{package}/{method.name}", method.client_streaming, method.server_streaming


def call(channel, name, client_streams, server_streams, metadata=()):
    """The status of an empty call."""
    kind = ("stream" if client_streams else "unary") + "_" + ("stream" if server_streams else "unary")
    stub = getattr(channel, kind)(name, nothing, nothing)
    request = iter([b""]) if client_streams else b""
    try:
        reply = stub(request, metadata=metadata, timeout=60)
        if server_streams:
            list(reply)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_every_method_is_refused_without_a_token(start_daemon, authority):
    """The methods are enumerated from the descriptors, so that a new method is covered."""
    daemon = start_daemon(*tls_flags(authority))
    bad = [("authorization", "Bearer tt_" + "1" * 64)]
    odd = [("authorization", "Basic YTpi")]
    metrics = [("authorization", "Bearer " + token_of(daemon, "prometheus", "metrics"))]
    expired = token_of(daemon, "old")
    with sqlite3.connect(f"{daemon.folder}/state/tokens.db") as db:
        db.execute("UPDATE tokens SET expires = ? WHERE user = 'old'", (int(time.time()) - 1,))
    revoked = token_of(daemon, "gone")
    number = next(t["id"] for t in json.loads(cli(daemon, "token", "list", "--json").stdout)
                  if t["user"] == "gone")
    assert cli(daemon, "token", "revoke", number).returncode == 0
    old = [[("authorization", f"Bearer {t}")] for t in (expired, revoked)]
    channel = credentials_of("tls://" + daemon.tcp, ca=authority.ca).channel([])
    found = list(methods())
    assert len(found) >= 18
    for name, client_streams, server_streams in found:
        for metadata in ([], bad, odd, *old):
            code = call(channel, name, client_streams, server_streams, metadata)
            assert code == grpc.StatusCode.UNAUTHENTICATED, (name, metadata, code)
        code = call(channel, name, client_streams, server_streams, metrics)
        may = name.endswith(("Compute/Describe", "Admin/Memory"))
        assert code == (grpc.StatusCode.OK if may else grpc.StatusCode.PERMISSION_DENIED), (name, code)
    channel.close()


def test_services_that_are_not_our_own(start_daemon, authority):
    """gRPC's health service says only that the daemon serves. gRPC's other services are not there."""
    daemon = start_daemon(*tls_flags(authority))
    with credentials_of("tls://" + daemon.tcp, ca=authority.ca).channel([]) as tls, \
            grpc.insecure_channel(daemon.unix) as socket:
        for channel in (tls, socket):
            assert call(channel, "/grpc.health.v1.Health/Check", False, False) == grpc.StatusCode.OK
            for name in ("channelz.v1.Channelz/GetServers", "lb.v1.LoadReporter/ReportLoad",
                         "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                         "envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus"):
                code = call(channel, "/" + name, False, False)
                assert code == grpc.StatusCode.UNIMPLEMENTED, name


class WithToken(grpc.StreamStreamClientInterceptor):
    """Adds a token to the calls of a channel."""

    def __init__(self, token):
        self._metadata = [("authorization", f"Bearer {token}")]

    def intercept_stream_stream(self, continuation, details, requests):
        return continuation(details._replace(metadata=self._metadata), requests)


def test_reflection_needs_a_token(start_daemon):
    """On every way in: loopback, once there are tokens, as without any. A caller with a token gets what a tool
    such as grpcurl needs to make a call."""
    daemon = start_daemon()
    with grpc.insecure_channel(daemon.tcp) as channel:
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        ask = reflection_pb2.ServerReflectionRequest

        def refused(metadata):
            with pytest.raises(grpc.RpcError) as error:
                next(reflect(iter([ask(list_services="")]), timeout=60, metadata=metadata))
            return error.value.code()

        assert refused([]) == grpc.StatusCode.UNAUTHENTICATED
        token = token_of(daemon, "alice")
        assert refused([]) == grpc.StatusCode.UNAUTHENTICATED
        assert refused([("authorization", "Bearer tt_" + "1" * 64)]) == grpc.StatusCode.UNAUTHENTICATED
        metrics = [("authorization", "Bearer " + token_of(daemon, "prometheus", "metrics"))]
        assert refused(metrics) == grpc.StatusCode.PERMISSION_DENIED

        trusted = grpc.intercept_channel(channel, WithToken(token))
        known = ProtoReflectionDescriptorDatabase(trusted)
        assert {"teletensor.v1.Compute", "teletensor.v1.Admin", "teletensor.v1.Store"} < set(known.get_services())
        pool = DescriptorPool(known)
        describe = pool.FindServiceByName("teletensor.v1.Compute").FindMethodByName("Describe")
        reply = GetMessageClass(describe.output_type)()
        reply.ParseFromString(channel.unary_unary("/teletensor.v1.Compute/Describe")(
            b"", timeout=60, metadata=[("authorization", f"Bearer {token}")]))
        assert reply.devices
        stub = reflection_pb2_grpc.ServerReflectionStub(trusted)
        for wrong in (ask(file_by_filename="../../etc/passwd"), ask(file_containing_symbol="teletensor.v1.Not"),
                      ask(all_extension_numbers_of_type="x"), ask(), ask(
                          file_containing_extension={"containing_type": "teletensor.v1.HelloRequest",
                                                     "extension_number": -1})):
            (answer,) = stub.ServerReflectionInfo(iter([wrong]), timeout=60)
            assert answer.error_response.error_message and answer.original_request == wrong
    with grpc.insecure_channel(daemon.unix) as channel:  # the socket's owner is an admin
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([ask(list_services="")]), timeout=60)
        assert len(answer.list_services_response.service) == 4


def test_users_and_admins(start_daemon, tt, authority):
    daemon = start_daemon(*tls_flags(authority))
    address = "tls://" + daemon.tcp
    alice, bob, root = (token_of(daemon, *who) for who in (("alice",), ("bob",), ("root", "admin")))

    def operate(token, *words):
        return subprocess.run([sys.executable, "-m", "teletensor.cli", *words, "--address", address],
                              capture_output=True, text=True, timeout=60,
                              env={**os.environ, "TELETENSOR_TOKEN": token, "TELETENSOR_CA": str(authority.ca)})

    with tt.connect(address, token=alice, ca=authority.ca, name="alices") as s:
        kept = tt.ones(MIB)
        s.synchronize()
        assert "alices" in operate(alice, "sessions").stdout
        seen = operate(bob, "sessions").stdout
        assert "alices" not in seen and "1 of others" in seen
        for words in (["kill", str(s.id)], ["memory", "--session", str(s.id)],
                      ["kill", str(s.id), "--interrupt"]):
            done = operate(bob, *words)
            assert done.returncode == 1 and "there is no session" in done.stderr
        for words in (["token", "list"], ["token", "create", "bob", "--role", "admin"]):
            done = operate(bob, *words)
            assert done.returncode == 1 and "not for the role user" in done.stderr
        # Bob has the secret of Alice's session but is still refused.
        theirs = credentials_of(address, token=bob, ca=authority.ca)
        channel = theirs.channel([])
        session_token = dict(s._transport._metadata)["teletensor-token"]
        metadata = [*theirs.metadata(), ("teletensor-token", session_token)]
        for name, client_streams, server_streams in methods():
            if "Compute" in name and not name.endswith(("Hello", "Describe")):
                code = call(channel, name, client_streams, server_streams, metadata)
                assert code == grpc.StatusCode.NOT_FOUND, (name, code)
        channel.close()
        assert kept.sum().item() == MIB
        assert "alices" in operate(root, "sessions").stdout
        assert operate(root, "kill", str(s.id)).returncode == 0
        with pytest.raises(tt.SessionLostError, match="ended by root"):
            kept.sum().item()
            s.synchronize()


def test_loopback_needs_a_token(start_daemon, tt):
    """Callers are refused from the start, before a token exists."""
    daemon = start_daemon()
    with pytest.raises(tt.RefusedError, match="token"):
        tt.connect(daemon.tcp)
    assert ask(daemon.http, "/metrics").status == 401 and ask(daemon.http, "/api/state").status == 401
    assert "anonymous_allowed" not in daemon.log
    token = token_of(daemon, "alice")
    with tt.connect(daemon.tcp, token=token):
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
    assert ask(daemon.http, "/metrics").status == 401
    assert ask(daemon.http, "/metrics", token="tt_wrong").status == 401
    monitor = token_of(daemon, "prometheus", "metrics")
    assert ask(daemon.http, "/metrics", token=monitor).status == 200
    assert ask(daemon.http, "/healthz").status == 200 and ask(daemon.http, "/readyz").status == 200
    with pytest.raises(tt.RefusedError, match="role metrics"):
        tt.connect(daemon.tcp, token=monitor)
    with tt.connect(daemon.unix):  # the daemon's own user needs none
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("how", ["expired", "revoked", "emptied", "removed", "removed while it is down"])
def test_no_door_opens_when_the_last_token_goes(how, start_daemon, tt):
    daemon = start_daemon()
    token = token_of(daemon, "alice")
    file = f"{daemon.folder}/state/tokens.db"
    if how == "revoked":
        (known,) = json.loads(cli(daemon, "token", "list", "--json").stdout)
        done = cli(daemon, "token", "revoke", known["id"])
        assert done.returncode == 0 and "no good token is left" in done.stderr
    elif how in ("expired", "emptied"):
        with sqlite3.connect(file) as db:
            db.execute("DELETE FROM tokens" if how == "emptied" else "UPDATE tokens SET expires = 1")
    elif how == "removed":
        os.unlink(file)
        assert daemon.terminate() == 0
        daemon.restart()
    else:
        assert daemon.terminate() == 0
        os.unlink(file)
        daemon.restart()
    for given in (None, token):
        with pytest.raises(tt.RefusedError, match="token"):
            tt.connect(daemon.tcp, token=given)
        assert ask(daemon.http, "/api/state", token=given).status == 401


def test_a_token_that_is_revoked_beside_a_good_one_warns_of_nothing(start_daemon):
    daemon = start_daemon()
    for user in ("alice", "bob"):
        token_of(daemon, user)
    first, second = json.loads(cli(daemon, "token", "list", "--json").stdout)
    assert not cli(daemon, "token", "revoke", first["id"]).stderr
    assert "no good token is left" in cli(daemon, "token", "revoke", second["id"]).stderr


def test_anonymous_callers_are_for_who_says_so(start_daemon, tt):
    """--allow-anonymous works with and without tokens; the log states its effect."""
    daemon = start_daemon(anonymous="what --allow-anonymous does")
    assert "event=anonymous_allowed" in daemon.log and "level=warning" in daemon.log
    token = token_of(daemon, "alice")
    for given in (None, token):
        with tt.connect(daemon.tcp, token=given):
            assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
        assert ask(daemon.http, "/metrics", token=given).status == 200
    with pytest.raises(tt.RefusedError, match="unknown"):  # a wrong token is less than none
        tt.connect(daemon.tcp, token="tt_" + "0" * 64)


def test_by_default_there_is_the_socket_alone(tmp_path, tt):
    process = subprocess.Popen([binary(), "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "state")],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline()
        assert "unix=" in line and "tcp=" not in line and "http=" not in line and "url=" not in line
        with tt.connect(f"unix:{tmp_path}/s"):
            assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
        listening = subprocess.run(["cat", f"/proc/{process.pid}/net/tcp", f"/proc/{process.pid}/net/tcp6"],
                                   capture_output=True, text=True).stdout
        own = {os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")}
        assert not [row for row in listening.splitlines()[1:] if len(row.split()) > 9
                    and f"socket:[{row.split()[9]}]" in own]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_the_dashboards_address_has_a_token_of_this_run(start_daemon, tt):
    """The token is like Jupyter's: only on stdout, stored nowhere, valid only for HTTP, and invalid after a
    restart."""
    daemon = start_daemon()
    address, _, secret = daemon.url.partition("/#token=")
    assert address == "http://" + daemon.http and len(secret) == 67
    with tt.connect(daemon.unix, name="seen") as s:
        state = ask(daemon.http, "/api/state", token=secret)
        assert state.status == 200 and "seen" in state.text  # as an admin, names of other users are visible
        done = ask(daemon.http, "/api/kill", method="POST", body={"session": s.id}, token=secret)
        assert done.status == 200
    with pytest.raises(tt.RefusedError, match="unknown"):
        tt.connect(daemon.tcp, token=secret)
    assert secret not in daemon.log
    for folder, _, names in os.walk(f"{daemon.folder}/state"):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                assert secret.removeprefix("tt_").encode() not in file.read()
    assert not json.loads(cli(daemon, "token", "list", "--json").stdout)
    daemon.terminate()
    daemon.restart()
    assert daemon.url and daemon.url.partition("/#token=")[2] != secret
    assert ask(daemon.http, "/api/state", token=secret).status == 401


def test_a_port_that_is_taken_names_who_has_it(start_daemon, tmp_path):
    daemon = start_daemon()
    for flags in (("--listen", daemon.tcp), ("--http", daemon.http), ("--listen", daemon.http)):
        other = () if flags[0] == "--listen" else ("--listen", "127.0.0.1:0")
        text = refuses_to_start("--state-dir", str(tmp_path), *other, *flags)
        assert f"cannot listen on {flags[1]}: process {daemon.pid} (teletensord) listens there" in text


def test_a_proxys_socket_is_not_the_own_one(start_daemon, tt, tmp_path):
    """All callers use the proxy's socket, so a caller without a token has no identity there."""
    path = tmp_path / "proxy.sock"
    daemon = start_daemon("--proxy-socket", str(path))
    assert os.stat(path).st_mode & 0o777 == 0o660
    with pytest.raises(tt.RefusedError, match="token"):
        tt.connect(f"unix:{path}")
    with tt.connect(f"unix:{path}", token=token_of(daemon, "alice")):
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
        assert json.loads(cli(daemon, "sessions", "--json").stdout)[0]["user"] == "alice"
    assert daemon.terminate() == 0
    assert not path.exists()
    daemon.stop = lambda: ""


def test_http_over_tls_needs_a_token(start_daemon, authority, tmp_path):
    """Only TLS is accepted, also for health pages. On loopback HTTP stays plain, for a monitor on the same
    machine."""
    plain = start_daemon(*tls_flags(authority))
    plain_token = token_of(plain, "alice")
    assert ask(plain.http, "/metrics").status == 401
    assert ask(plain.http, "/metrics", token=plain_token).status == 200
    # This spelling of the loopback address does not count as loopback, so HTTP uses TLS there.
    state = ["--state-dir", str(tmp_path / "state")]
    token = subprocess.run([binary(), *state, "--create-token", "alice:user"], capture_output=True, text=True,
                           check=True).stdout.strip()
    daemon = start_daemon(*tls_flags(authority), *state, "--http", "127.1:0")
    port = int(daemon.http.rsplit(":", 1)[1])
    stranger = Authority(tmp_path / "other", "another authority")

    def status(ca, path, token=None):
        context = ssl.create_default_context(cafile=str(ca))
        with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG, context=context)) as http_:
            http_.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            return http_.getresponse().status
    assert status(authority.ca, "/healthz") == 200
    assert status(authority.ca, "/metrics") == status(authority.ca, "/metrics", "tt_" + "0" * 64) == 401
    assert status(authority.ca, "/metrics", token) == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        status(stranger.ca, "/healthz")
    with pytest.raises((OSError, http.client.HTTPException)):  # without TLS there is no answer
        ask(f"127.0.0.1:{port}", "/healthz")


def test_tokens_are_kept_as_hashes(start_daemon):
    daemon = start_daemon()
    secret = token_of(daemon, "alice")
    state = f"{daemon.folder}/state"
    assert os.stat(state).st_mode & 0o777 == 0o700
    for path in Path(state).rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
        assert path.is_dir() or secret.removeprefix("tt_").encode() not in path.read_bytes()
    listed = cli(daemon, "token", "list")
    assert "alice" in listed.stdout and secret not in listed.stdout + listed.stderr
    for words in (["token", "create", "a b"], ["token", "create", "x" * 65], ["token", "create", "al\nice"],
                  ["token", "create", "-"], ["token", "revoke", "nonsense"]):
        done = cli(daemon, *words)
        assert (done.returncode == 0) == (words[2] == "-"), done


def test_a_damaged_token_file_lets_nobody_in(start_daemon, tt):
    """A name that is no valid user name would be written to logs and terminals."""
    daemon = start_daemon()
    token = token_of(daemon, "alice")
    with tt.connect(daemon.tcp, token=token):
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
    with sqlite3.connect(f"{daemon.folder}/state/tokens.db") as db:
        db.execute("UPDATE tokens SET user = ?", ("al\nlevel=error event=\x1b[2J",))
    with pytest.raises(tt.TeletensorError, match="damaged"):
        tt.connect(daemon.tcp, token=token)
    assert "\x1b" not in daemon.log and "\nlevel=error" not in daemon.log


def test_a_token_file_that_others_can_read_is_refused(start_daemon):
    daemon = start_daemon()
    token_of(daemon, "alice")
    assert daemon.terminate() == 0
    daemon.stop = lambda: ""
    os.chmod(f"{daemon.folder}/state/tokens.db", 0o644)
    done = subprocess.run([binary(), "--state-dir", f"{daemon.folder}/state", "--create-token", "bob:user"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "chmod 600" in done.stderr


def test_a_token_is_written_for_its_owner_alone(start_daemon, tt, tmp_path):
    """Token files are written by the daemon and by a client with mode 0600, whatever the umask; an existing
    file is never overwritten."""
    daemon = start_daemon()
    state, made, later = f"{daemon.folder}/state", tmp_path / "alice", tmp_path / "bob"

    def make(*words):
        return subprocess.run(words, capture_output=True, text=True, timeout=120, umask=0)
    first = [binary(), "--state-dir", state, "--create-token", "alice:user", "--output", str(made)]
    second = [sys.executable, "-m", "teletensor.cli", "token", "create", "bob", "--address", daemon.unix, "--output",
              str(later)]
    for words, path in ((first, made), (second, later)):
        done = make(*words)
        assert done.returncode == 0 and done.stdout == "", done.stderr
        assert path.stat().st_mode & 0o777 == 0o600
        with tt.connect(daemon.tcp, token=path.read_text(encoding="ascii")):
            assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
        text, count = path.read_text(encoding="ascii"), len(json.loads(cli(daemon, "token", "list", "--json").stdout))
        done = make(*words)
        assert done.returncode == 1 and str(path) in done.stderr and "Traceback" not in done.stderr
        assert path.read_text(encoding="ascii") == text
        assert len(json.loads(cli(daemon, "token", "list", "--json").stdout)) == count
    bad = make(*first[:4], "a b:user", "--output", str(tmp_path / "none"))
    assert bad.returncode == 2 and not (tmp_path / "none").exists()
    worse = make(*second[:5], "a b", *second[6:-1], str(tmp_path / "none"))
    assert worse.returncode == 1 and not (tmp_path / "none").exists()
    alone = make(binary(), "--output", str(tmp_path / "none"))
    assert alone.returncode != 0 and "--create-token" in alone.stderr


def test_a_clients_token_file_that_others_can_read(start_daemon, tmp_path):
    """The client uses it, and warns once a process."""
    daemon = start_daemon()
    file = tmp_path / "token"
    file.write_text(token_of(daemon, "bob"), encoding="ascii")
    program = "import teletensor as tt; [tt.connect().close() for _ in range(2)]"
    for mode, warnings in ((0o644, 1), (0o640, 1), (0o600, 0)):
        file.chmod(mode)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "TELETENSOR_TOKEN_FILE": str(file),
                                   "TELETENSOR_ADDRESS": daemon.tcp})
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(f"other users can read {file} (mode 0{mode:o}): chmod 600 {file}") == warnings


def test_tokens_are_found_nowhere(start_daemon, tt, authority, monkeypatch):
    """A marked token passes through every error path; then every text output is searched for it."""
    daemon = start_daemon(*tls_flags(authority), "--log-level", "trace",
                          "--slow-ms", "50", env={"GRPC_TRACE": "all", "GRPC_VERBOSITY": "debug"})
    address, secret = "tls://" + daemon.tcp, token_of(daemon, "canary", "admin")
    texts = []
    wrong = secret[:-1] + ("0" if secret[-1] != "0" else "1")
    with tt.connect(address, token=secret, ca=authority.ca) as s:
        texts += [repr(s), repr(s._transport.credentials), str(s.memory())]
        session_token = dict(s._transport._metadata)["teletensor-token"]
        a = tt.ones(1500, 1500)
        (a @ a).sum().item()
        with pytest.raises(RuntimeError) as failed:
            tt.ones(3) @ tt.ones(4)
        texts.append(str(failed.value))
        kinds = (tt.RefusedError, tt.SessionLostError)
        for token, kind in ((wrong, kinds), ("tt_", kinds), ("x" * 1000, kinds), ("x" * 5000, ValueError)):
            with pytest.raises(kind) as refused:
                tt.connect(address, token=token, ca=authority.ca)
            texts.append(str(refused.value))
        for path in ("/metrics", "/readyz", "/nothing"):
            texts.append(str(ask(daemon.http, path, token=secret).text))
            texts.append(str(ask(daemon.http, path, token=wrong).text))
        monkeypatch.setenv("TELETENSOR_TOKEN", secret)
        for words in (["sessions"], ["slowlog"], ["token", "list"], ["kill", "999"]):
            done = cli(daemon, *words)
            texts.append(done.stdout + done.stderr)
        with open(f"/proc/{daemon.pid}/cmdline", encoding="utf-8") as file:
            texts.append(file.read())
        s.close()
    texts.append(daemon.log)
    texts.extend(path.read_bytes().decode("latin-1") for path in Path(f"{daemon.folder}/state").rglob("*")
                 if path.is_file())
    assert len(texts) > 15 and len(daemon.log) > 500
    for text in texts:
        for found in (secret, wrong, session_token):
            assert found.removeprefix("tt_")[:24] not in text


def test_no_token_on_a_command_line():
    """A token on the command line would be visible in the process list."""
    for words in (["sessions", "--token", "x"], ["bench", "--token=x"]):
        done = subprocess.run([sys.executable, "-m", "teletensor.cli", *words], capture_output=True, text=True)
        assert done.returncode == 2 and "unrecognized" in done.stderr


@pytest.mark.parametrize(("address", "tls"), [
    ("127.0.0.1:1", False), ("localhost:1", False), ("[::1]:1", False), ("unix:/x", False), ("/x", False),
    ("tls://127.0.0.1:1", True), ("example.org:1", True), ("192.0.2.1:1", True), ("127.example.org:1", True),
    ("[2001:db8::1]:1", True)])
def test_clients_encrypt_off_this_machine(address, tls):
    assert credentials_of(address, token="t").tls is tls
