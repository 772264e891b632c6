"""The cause of a failed connection is reported with its fix, by connect() and by `teletensor doctor`."""

import contextlib
import os
import pathlib
import re
import socket
import ssl
import subprocess
import sys
import threading

import grpc
import pytest
from support.daemon import wait_until
from support.tls import Authority, openssl
from teletensor._connection import reach as _reach, transport as _transport
from teletensor._connection.credentials import credentials_of

pytestmark = pytest.mark.usefixtures("each_transport")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("stranger"), "another authority")


def tls_flags(authority, *more):
    certificate, key = authority.issue("server")
    return ["--tls-cert", str(certificate), "--tls-key", str(key), *more]


def token_of(daemon, user="alice", *more):
    done = subprocess.run([sys.executable, "-m", "teletensor.cli", "token", "create", user, *more, "--address",
                           daemon.unix], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def port_of(daemon):
    return daemon.tcp.rpartition(":")[2]


def doctor(address, **environment):
    done = subprocess.run([sys.executable, "-m", "teletensor.cli", "doctor", "--address", address],
                          capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def refused(monkeypatch):
    """refused(address, what doctor calls the step, words of the text, ...): the text, by connect() and doctor. How
    often connect() asks the daemon is counted: a cause that is certain is told after the first time."""
    import teletensor

    asked = []
    first = _transport.Transport._answer_to

    def counted(self, hello):
        asked.append(self)
        return first(self, hello)
    monkeypatch.setattr(_transport.Transport, "_answer_to", counted)
    monkeypatch.setattr(_transport, "_STARTING_PAUSE", 0.0)

    def check(address, step, *words, kind=teletensor.SessionLostError, tries=1, **options):
        asked.clear()
        with pytest.raises(kind) as found:
            teletensor.connect(address, **options)
        text = str(found.value)
        assert all(word in text for word in words), text
        assert len(asked) == tries
        environment = {"TELETENSOR_CA": str(options.get("ca", "")), "TELETENSOR_TOKEN": options.get("token", "")}
        if cert := options.get("cert"):
            environment |= {"TELETENSOR_CERT": str(cert[0]), "TELETENSOR_KEY": str(cert[1])}
        done = doctor(address, **environment)
        assert done.returncode == 1, done.stdout
        last = done.stdout.splitlines()[-1]
        assert last.startswith(f"FAIL  {step}: ") and all(word in last for word in words), done.stdout
        return text
    return check


# ---------------------------------------------------------------- names and ports


def test_a_name_that_is_not_known(refused):
    refused("no-such-host.invalid:7420", "name", "'no-such-host.invalid' is not known", "spelling")


def test_a_port_where_nothing_listens(refused):
    with socket.socket() as unused:  # bound, so that nothing else gets it
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        text = refused(f"127.0.0.1:{port}", "port", f"nothing listens on port {port} of 127.0.0.1", "--listen",
                       tries=_transport._STARTING_TRIES)
    assert text.startswith(f"no teletensord answers at 127.0.0.1:{port}: ")


def test_a_socket_that_is_not_there(refused, tmp_path):
    path = tmp_path / "d.sock"
    tries = _transport._STARTING_TRIES
    refused(f"unix:{path}", "socket", f"there is no socket {path}", "start teletensord", tries=tries)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    refused(str(path), "socket", f"nothing listens on the socket {path}", "again", tries=tries)
    path.unlink()
    path.write_text("", encoding="ascii")
    refused(f"unix:{path}", "socket", f"{path} is not a socket", tries=1)


def test_a_daemon_that_is_about_to_start_is_waited_for(start_daemon, tt, monkeypatch):
    """The daemon starts while the client pauses for the third time; the test uses no clock."""
    daemon = start_daemon()
    daemon.kill()
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            daemon.restart()
    clock = type("Clock", (), {"sleep": staticmethod(pause), "monotonic": _transport.time.monotonic})
    monkeypatch.setattr(_transport, "time", clock)
    with tt.connect(daemon.unix):
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
    assert len(pauses) >= 3 and set(pauses) == {_transport._STARTING_PAUSE}


def test_a_daemon_that_is_known_to_restart_is_waited_for(start_daemon, tt, monkeypatch):
    """The client waits as long as a call may take, not only for a moment."""
    daemon = start_daemon()
    seconds = [0.0]

    def pause(time):
        seconds[0] += time
    clock = type("Clock", (), {"sleep": staticmethod(pause), "monotonic": lambda: seconds[0]})
    monkeypatch.setattr(_transport, "time", clock)
    daemon.kill()
    transport = _transport.open_transport(daemon.unix)
    transport.restarting = True
    with pytest.raises(tt.SessionLostError, match="nothing listens"):
        transport.hello(b"x" * 16, "", 0)
    transport.close()
    assert 10 <= seconds[0] < 10 + 2 * _transport._STARTING_PAUSE
    daemon.restart()


def test_a_session_that_waits_for_its_daemon_tells_the_next_one(start_daemon, tt):
    from teletensor._sessions import session as _session

    daemon = start_daemon("--restart", "60")
    credentials = credentials_of(daemon.unix)
    with tt.connect(daemon.unix):
        x = tt.ones(3)
        x.sum().item()
        assert not _session._is_away(credentials)
        daemon.drain()
        wait_until(lambda: _session._is_away(credentials), what="the session waits for the next daemon")
        daemon.restart()
        assert x.tolist() == [1.0] * 3
        # The value may arrive before the thread that has attached the session again records it.
        wait_until(lambda: not _session._is_away(credentials), what="the session is attached again")


# ---------------------------------------------------------------- plain text, TLS, HTTP


def test_plain_text_to_a_port_of_tls(start_daemon, refused, authority):
    daemon = start_daemon(*tls_flags(authority))
    refused(daemon.tcp, "protocol", "speaks TLS", f"tls://{daemon.tcp}", "TELETENSOR_CA", token=token_of(daemon))


def test_tls_to_a_port_of_plain_text(start_daemon, refused, authority):
    daemon = start_daemon()
    refused("tls://" + daemon.tcp, "TLS", "speaks plain text, and this client TLS, because of the address tls://")
    refused(daemon.tcp, "TLS", f"because of the authority {authority.ca}", "--tls-cert", ca=authority.ca)


def test_an_authority_means_tls_on_loopback(start_daemon, tt, authority):
    daemon = start_daemon(*tls_flags(authority))
    address, token = "localhost:" + port_of(daemon), token_of(daemon)
    with tt.connect(address, token=token, ca=authority.ca):
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
    done = doctor(address, TELETENSOR_TOKEN=token, TELETENSOR_CA=str(authority.ca))
    assert done.returncode == 0 and re.search(r"ok    TLS: TLSv1\.\d, certificate of localhost, 127\.0\.0\.1 until",
                                              done.stdout), done.stdout


def test_the_port_of_http(start_daemon, refused, authority):
    daemon = start_daemon()
    for address, step in ((daemon.http, "protocol"), ("tls://" + daemon.http, "TLS")):
        refused(address, step, "speaks HTTP/1", "--http", "the address of --listen")


def test_a_port_of_something_else(refused):
    def answer(server, said):
        with contextlib.suppress(OSError):
            while True:
                connection = server.accept()[0]
                with connection, contextlib.suppress(OSError):
                    connection.sendall(said)
                    connection.recv(4096)
    for said, words, silent in (
            (b"SSH-2.0-OpenSSH_9.2\r\n", ["another program", "SSH-2.0"], False),
            # An overloaded daemon does the same, so the client waits for a call in progress.
            (b"", ["another program", "closes the connection without an answer", "overloaded"], True)):
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=answer, args=(server, said), daemon=True).start()
            credentials = credentials_of(f"127.0.0.1:{server.getsockname()[1]}")
            fault = _reach.fault_of(credentials)
            assert all(word in str(fault) for word in words), fault
            assert not fault.absent and fault.silent == silent
            server.shutdown(socket.SHUT_RDWR)


def test_another_gprc_server_is_no_teletensord(tt):
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(tt.RefusedError, match="speaks gRPC, and is no teletensord"):
        tt.connect(f"127.0.0.1:{port}")
    server.stop(None)


@pytest.mark.parametrize(("address", "text"), [
    ("http://localhost:7421", "does not speak HTTP"), ("https://box", "does not speak HTTP"),
    ("tcp://box:7420", "does not begin with tcp://; write box:7420"), ("grpc://box:1/x", "write box:1 "),
    ("://", "does not begin with ://")])
def test_schemes_are_answered_by_name(tt, address, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        tt.connect(address)


# ---------------------------------------------------------------- certificates


def test_certificates_that_are_not_good(start_daemon, refused, authority, stranger, tmp_path):
    daemon = start_daemon(*tls_flags(authority))
    address, token = "tls://" + daemon.tcp, token_of(daemon)
    refused(address, "TLS", f"not signed by an authority in {stranger.ca}", "TELETENSOR_CA", token=token,
            ca=stranger.ca)
    refused(address, "TLS", "not signed by an authority that this system knows", "TELETENSOR_CA", token=token)
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing", encoding="ascii")
    refused(address, "TLS", f"{empty} holds no certificate", token=token, ca=empty)


def test_a_certificate_for_another_name(start_daemon, refused, authority, tmp_path):
    request, extra, made = tmp_path / "r", tmp_path / "e", tmp_path / "box.pem"
    key = tmp_path / "box.key"
    extra.write_text("subjectAltName=DNS:the-box,IP:192.0.2.1\n", encoding="ascii")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=the-box", "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", authority.ca, "-CAkey", authority.folder / "ca.key",
            "-CAcreateserial", "-days", 2, "-extfile", extra, "-out", made)
    key.chmod(0o600)
    daemon = start_daemon("--tls-cert", str(made), "--tls-key", str(key))
    refused(daemon.tcp, "TLS", "is for the-box, 192.0.2.1, not for 127.0.0.1", "`teletensor cert 127.0.0.1`",
            ca=authority.ca)


def test_a_certificate_whose_term_is_over(start_daemon, refused, authority, tmp_path):
    """The daemon's TLS does not check the validity period of its own certificate."""
    request, extra, made, key = (tmp_path / name for name in ("r", "e", "old.pem", "old.key"))
    extra.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n", encoding="ascii")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=old", "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", authority.ca, "-CAkey", authority.folder / "ca.key",
            "-CAcreateserial", "-days", "-1", "-extfile", extra, "-out", made)
    key.chmod(0o600)
    daemon = start_daemon("--tls-cert", str(made), "--tls-key", str(key))
    refused(daemon.tcp, "TLS", "term of the daemon's certificate is over", "clock", ca=authority.ca)


def test_a_certificate_of_the_client_that_is_wanted(start_daemon, refused, authority, stranger):
    daemon = start_daemon(*tls_flags(authority, "--tls-client-ca", str(authority.ca)))
    token = token_of(daemon)
    refused(daemon.tcp, "TLS", "want a certificate of this client", "TELETENSOR_CERT", token=token, ca=authority.ca)
    wrong = stranger.issue("alice")
    refused(daemon.tcp, "TLS", f"does not take this client's certificate {wrong[0]}", "--tls-client-ca", token=token,
            ca=authority.ca, cert=wrong)


# ---------------------------------------------------------------- tokens, version


def test_tokens(start_daemon, refused, tt):
    daemon = start_daemon()
    refused(daemon.tcp, "session", "this needs a token", "TELETENSOR_TOKEN_FILE", "teletensor token create",
            kind=tt.RefusedError)
    text = refused(daemon.tcp, "session", "unknown, expired or revoked", kind=tt.RefusedError, token="tt_" + "0" * 64)
    assert "from the argument token" in text


def test_another_version(start_daemon, tt, monkeypatch):
    from teletensor import _core

    daemon = start_daemon()
    monkeypatch.setattr(_core, "PROTOCOL_MIN", _core.PROTOCOL + 1)
    monkeypatch.setattr(_core, "PROTOCOL", _core.PROTOCOL + 1)
    text = rf"the client speaks protocol {_core.PROTOCOL}, server .* speaks .*: install a newer daemon, or a client of"
    with pytest.raises(tt.RefusedError, match=text):
        tt.connect(daemon.unix)


# ---------------------------------------------------------------- silence


def test_silence_is_told_and_waited_for(tt, monkeypatch, caplog):
    """A port accepts connections and never answers; a busy daemon looks the same."""
    monkeypatch.setattr(_transport, "_SILENCE", 0.01)
    monkeypatch.setattr(_reach, "_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        transport = _transport.open_transport(address, timeout=1.0)
        with pytest.raises(tt.SessionLostError, match="takes the connection, and says nothing within"):
            transport.hello(b"x" * 16, "", 0)
        transport.close()
    assert "has not answered for" in caplog.text and "stopped or overloaded" in caplog.text


def test_a_connection_that_ends_behind_the_handshake_is_no_proof(start_daemon, tt, authority, monkeypatch):
    """A daemon that wants the client's certificate ends the connection without an alert, and so does an overloaded
    one. This one answers Hello after the client has looked for the cause."""
    monkeypatch.setattr(_transport, "_SILENCE", 0.01)
    told, looked = [], threading.Event()
    monkeypatch.setattr(_transport, "tell", lambda text, *values: (told.append(text % values), looked.set()))
    certificate, key = authority.issue("server")
    daemon = start_daemon("--tls-cert", str(certificate), "--tls-key", str(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])

    def overloaded(server):
        first = server.accept()[0]  # the connection with Hello
        threading.Thread(target=relay_later, args=(first,), daemon=True).start()
        with contextlib.suppress(OSError):
            while True:
                connection = server.accept()[0]
                with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
                    pass

    def relay_later(client):
        looked.wait()
        host, port = daemon.tcp.split(":")
        with client, socket.create_connection((host, int(port))) as target:
            back = threading.Thread(target=pump, args=(target, client), daemon=True)
            back.start()
            pump(client, target)
            back.join()

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=overloaded, args=(server,), daemon=True).start()
        address = f"tls://127.0.0.1:{server.getsockname()[1]}"
        credentials = credentials_of(address, token=token_of(daemon), ca=authority.ca)
        transport = _transport.open_transport(address, credentials)
        transport.hello(b"x" * 16, "", 0)
        transport.close()
        server.shutdown(socket.SHUT_RDWR)
    assert "seems to want a certificate" in told[0] and "as an overloaded daemon does too" in told[0]


def test_a_cause_that_is_certain_ends_the_wait(tt, monkeypatch):
    """The cause is looked for after a moment of silence, whatever gRPC does at that time."""
    monkeypatch.setattr(_transport, "_SILENCE", 0.01)
    release = threading.Event()

    def stuck(self, method, request, timeout, wait):
        release.wait()
        raise _transport.CallError(4, "Deadline Exceeded")
    transport = _transport.open_transport("no-such-host.invalid:1")
    monkeypatch.setattr(type(transport), "call", stuck)
    try:
        with pytest.raises(tt.SessionLostError, match="is not known here"):
            transport.hello(b"x" * 16, "", 0)
    finally:
        release.set()


def test_commands_explain_as_well(tmp_path):
    for words in (["health"], ["sessions"], ["kill", "4"]):
        done = subprocess.run([sys.executable, "-m", "teletensor.cli", *words, "--address", str(tmp_path / "d.sock")],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and "there is no socket" in done.stderr, done.stderr


def test_serve_without_a_binary(tmp_path):
    program = ("import sys, teletensor.cli as cli; cli.find_daemon = lambda: open('/no/such/daemon');"
               "sys.exit(cli.main(['serve']))")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.startswith("teletensor serve: ") and "Traceback" not in done.stderr


@pytest.mark.parametrize("setting", ["TELETENSOR_TOKEN_FILE", "TELETENSOR_CA", "TELETENSOR_CERT", "TELETENSOR_KEY"])
def test_a_file_that_is_not_there(tt, setting, monkeypatch, tmp_path):
    missing = str(tmp_path / "nothing")
    cure = "teletensor token create NAME --output" if setting == "TELETENSOR_TOKEN_FILE" else "`teletensor cert`"
    monkeypatch.setenv(setting, missing)
    with pytest.raises(FileNotFoundError) as found:
        tt.connect("127.0.0.1:1")
    assert f"{setting} names {missing}, which cannot be read (No such file" in str(found.value)
    assert cure in str(found.value)
    last = doctor("127.0.0.1:1").stdout.splitlines()[-1]
    assert last.startswith(f"FAIL  files: {setting} names {missing}") and cure in last
    monkeypatch.setenv(setting, "")
    if setting == "TELETENSOR_CA":
        with pytest.raises(FileNotFoundError, match=f"^ca= names {missing}, which"):
            tt.connect("127.0.0.1:1", ca=missing)
    with pytest.raises(IsADirectoryError, match="^cert= names .*, which cannot be read"):
        tt.connect("127.0.0.1:1", cert=(tmp_path, tmp_path))


def test_a_certificate_is_a_pair(tt):
    for cert in ("server.pem", b"server.pem", pathlib.Path("server.pem"), ("server.pem",)):
        with pytest.raises(TypeError, match=r"^cert: expected a pair of paths, \(certificate, key\), not "):
            tt.connect("127.0.0.1:1", cert=cert)


@pytest.mark.parametrize("blanks", [" {}", "{}\n", "\t{} \r\n"])
def test_blanks_around_an_address(shared_daemon, monkeypatch, blanks):
    import teletensor

    address = blanks.format(shared_daemon.unix)
    with teletensor.connect(address) as session:
        assert session.devices
    monkeypatch.setenv("TELETENSOR_ADDRESS", address)
    with teletensor.connect() as session:
        assert session.devices


def test_an_address_without_a_port(tt):
    with pytest.raises(ValueError, match="address 'localhost': expected host:port .*such as localhost:7420"):
        tt.connect("localhost")


def test_child_processes_do_not_inherit_the_level_of_grpcs_log(shared_daemon):
    """A daemon that a client starts needs gRPC's messages, among others for a thread that is refused."""
    code = ("import os, teletensor as tt\n"
            "with tt.connect(): assert tt.ones(3).sum().item() == 3\n"
            "assert 'GRPC_VERBOSITY' not in os.environ\n")
    env = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
                          env={**env, "TELETENSOR_ADDRESS": shared_daemon.unix})
    assert done.returncode == 0, done.stderr


def test_grpc_writes_nothing_about_a_failed_handshake(start_daemon, authority, tmp_path):
    daemon = start_daemon(*tls_flags(authority))
    (tmp_path / "ca.pem").write_text("no certificate")
    for ca in (tmp_path / "ca.pem", ""):
        code = f"import teletensor as tt\ntt.connect('tls://localhost:{port_of(daemon)}', token='x', ca={str(ca)!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and done.stderr.startswith("Traceback"), done.stderr
        assert "SessionLostError" in done.stderr


def test_the_daemons_binary_is_needed_without_an_address(tmp_path):
    """doctor looks for a daemon's binary only if a daemon would be started."""
    done = doctor(str(tmp_path / "d.sock"), TELETENSORD=str(tmp_path / "none"))
    assert "teletensord binary" not in done.stdout
