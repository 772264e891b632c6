"""Mistakes of a client: each is refused as its own, with INVALID_ARGUMENT, and nothing that it has sent
reaches the log as it is."""

import json
import socket
import struct
import subprocess
import sys

import grpc
import pytest
from conformance.thin import ThinClient
from support.daemon import HANG, binary, wait_until
from support.http import ask, samples
from support.raw import Raw, metadata

FORGED = 'x" \ntime=2026-01-01T00:00:00.000+00:00 level=error event=session_ended session="root" why=killed'


@pytest.fixture(name="raw")
def raw_client(shared_daemon):
    with Raw(shared_daemon.unix) as raw:
        yield raw


def ended_with(session):
    """The code and the text with which the server ends the stream, and the word for the reason."""
    code, text = session.refusal()
    return code.name, text, dict(session.call.trailing_metadata() or ()).get("teletensor-reason")


def program(raw, name, checksum=None):
    """The bytes of a program that returns its input."""
    pb = raw.program_pb
    view = pb.Program.View(shape=[1], strides=[1])
    body = pb.Program(format=1, name=name, values=[pb.Program.ValueType(dtype=9, elements=1)],
                      body=pb.Program.Block(parameters=[view], results=[view]), parameter_names=["p"])
    data = body.SerializeToString()
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % 2**64
    return data + b"\x79" + struct.pack("<Q", value if checksum is None else checksum)


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("name", [FORGED, "\x1b[31mred", "\x00", "\u202e"])
def test_the_name_of_a_program_forges_no_line(name, thin, start_daemon):
    daemon = start_daemon()
    with Raw(daemon.unix) as raw:
        define = {"define": {"program": 1, "contents": program(raw, name)}}
        session = raw.session(thin=thin)
        session.run(session.command(**define), session.constant([1.0]),
                    session.command(call={"program": 1, "inputs": [1], "made": 0}), session.fetch(1))
        if thin:
            assert session.fetched().data == struct.pack("<f", 1.0)
            session.end()
        else:
            code, text, word = ended_with(session)
            assert (code, word) == ("INVALID_ARGUMENT", "protocol") and "control characters" in text
        session.close()
    wait_until(lambda: "session_ended" in daemon.log, what="the end of the session is in the log")
    lines = [line for line in daemon.log.splitlines() if "event=" in line]
    assert lines and not any("2026-01-01" in line or 'session="root"' in line for line in lines)
    assert all(character.isprintable() for line in lines for character in line), lines


def test_the_log_as_json(start_daemon):
    daemon = start_daemon("--log-format", "json")
    with Raw(daemon.unix) as raw:
        session = raw.session(session_name="exp")
        session.run(session.constant([1.0]), lambda _: session.command(op=2, arguments=[2]))
        ended_with(session)
        session.close()
    wait_until(lambda: "session_ended" in daemon.log, what="the end of the session is in the log")
    lines = [json.loads(line) for line in daemon.log.splitlines() if line.startswith("{")]
    assert all({"time", "level", "event"} <= set(line) for line in lines)
    opened, = (line for line in lines if line["event"] == "session_opened")
    ended, = (line for line in lines if line["event"] == "session_ended")
    assert opened["session"] == ended["session"] == "exp" and ended["why"] == "protocol"
    assert isinstance(opened["id"], int) and ended["reason"]


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_a_busy_port_is_told_in_the_log(style, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        done = subprocess.run([binary(), "--listen", f"127.0.0.1:{busy.getsockname()[1]}", "--no-socket", "--state-dir",
                               str(tmp_path / "state"), "--log-format", style],
                              capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    if style == "json":
        assert json.loads(lines[-1])["event"] == "not_started"
        assert all(json.loads(line)["level"] for line in lines)
    else:
        assert all(line.startswith("time=") and line.replace('\\"', "").count('"') % 2 == 0 for line in lines), lines
        assert "event=not_started" in lines[-1] and "cannot listen" in lines[-1]


def test_a_backward_that_declares_another_number_of_ids(raw):
    session = raw.session()
    session.run(session.constant([1.0, 2.0]),
                session.command(set_flag={"what": 0, "handle": 1, "on": True}),
                session.command(op=3, arguments=[2], attributes=[0, 1, 0], record=True),
                session.command(backward={"roots": [1], "seeds": [0], "made": 3}))
    code, text, word = ended_with(session)
    assert (code, word) == ("INVALID_ARGUMENT", "protocol") and "the command declares 3" in text
    session.close()


def test_a_program_whose_checksum_is_wrong(raw):
    session = raw.session()
    session.run(session.command(define={"program": 1, "contents": program(raw, "f", checksum=1)}))
    code, text, word = ended_with(session)
    assert (code, word) == ("INVALID_ARGUMENT", "protocol") and "checksum" in text
    session.close()


def test_numbers_of_programs_and_calls_are_named(shared_daemon, raw):
    client = ThinClient(shared_daemon.unix)
    client.add({"define": {"program": 0, "contents": program(raw, "f")}})
    client.add({"define": {"program": 1, "contents": program(raw, "f")}})
    client.constant([1.0])
    client.add({"call": {"program": 1, "inputs": [1], "times": 2**31}})
    client.op("neg", client.constant([1.0]))
    client.add({"op": client.ops["neg"][0], "arguments": [80000]}, 1)
    client.finish()
    texts = [error.text for _, error in sorted(client.errors.items())]
    assert texts == ["define: the numbers of programs start at 1",
                     "call: 2147483648 times, at most 1048576", "the handle is unknown: it was never made"]
    client.close()


@pytest.mark.parametrize("text", ["abc", "-1", "1.5", "", "1 ", str(10**23)])
def test_metadata_that_is_no_number(text, raw):
    pb = raw.session_pb
    reply = raw.hello()
    run = raw.channel.stream_stream("/teletensor.v1.Compute/Run", bytes, pb.Progress.FromString)
    upload = raw.channel.stream_unary("/teletensor.v1.Compute/Upload", bytes, pb.UploadReply.FromString)
    data = pb.UploadChunk(bytes=4, data=b"abcd").SerializeToString()
    calls = [lambda: next(run(iter([]), metadata=(*metadata(reply.token), ("teletensor-attach", text)), timeout=HANG)),
             lambda: upload(iter([data]), metadata=(*metadata(reply.token), ("teletensor-upload", text)), timeout=HANG)]
    for call, key in zip(calls, ("teletensor-attach", "teletensor-upload"), strict=True):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code().name == "INVALID_ARGUMENT" and key in caught.value.details()


def test_an_attach_that_claims_what_was_never_sent(raw):
    session = raw.session(lease_seconds=60)
    session.run(session.constant([1.0, 2.0]), session.fetch(1))
    assert session.fetched().data
    pb = raw.session_pb
    with pytest.raises(grpc.RpcError) as caught:
        raw.unary("/teletensor.v1.Compute/Attach", pb.AttachRequest(
            instance_id=b"0123456789abcdef", attach_counter=2, completed_upto=10**6,
            server_epoch=session.reply.server_epoch), pb.AttachReply, metadata(session.token))
    assert caught.value.code().name == "INVALID_ARGUMENT" and "never sent" in caught.value.details()
    assert session.attach(2).received_upto == 2
    session.end()
    session.close()


def test_a_drain_to_no_peer_changes_nothing(start_daemon, tt):
    daemon = start_daemon()
    for words in (("drain", "--to", "nosuch"), ("move", "exp", "--to", "nosuch")):
        with tt.connect(daemon.unix, name="exp"):
            done = subprocess.run([sys.executable, "-m", "teletensor.cli", *words, "--address", daemon.unix],
                                  capture_output=True, text=True, timeout=HANG)
            assert done.returncode == 1 and "peers" in done.stderr, done
    with tt.connect(daemon.unix):
        assert tt.ones(2).sum().item() == 2.0


def test_metrics_of_a_user_are_its_own(start_daemon, new_token, tt):
    daemon = start_daemon()
    alice, bob = new_token(daemon, "alice"), new_token(daemon, "bob")
    admin, metrics = new_token(daemon, "root", "admin"), new_token(daemon, "m", "metrics")
    with tt.connect(daemon.tcp, token=alice), tt.connect(daemon.tcp, token=bob):
        def users(token):
            found = samples(ask(daemon.http, "/metrics", token=token).text)
            assert found["teletensor_sessions_opened_total", ()] == 2
            return {value for _, labels in found for name, value in labels if name == "user"}
        assert users(alice) == {"alice"} and users(bob) == {"bob"}
        for token in (admin, metrics):
            assert {"alice", "bob"} <= users(token)


def test_http_says_what_is_possible(start_daemon, new_token):
    daemon = start_daemon()
    token = new_token(daemon, "root", "admin")
    for method in ("PUT", "POST", "DELETE", "OPTIONS", "PATCH"):
        reply = ask(daemon.http, "/metrics", method, token=token)
        assert (reply.status, reply.headers.get("Allow")) == (405, "GET, HEAD"), method
    for method in ("GET", "PUT", "DELETE"):
        reply = ask(daemon.http, "/api/kill", method, token=token)
        assert (reply.status, reply.headers.get("Allow")) == (405, "POST"), method
    assert ask(daemon.http, "/none", "PUT", token=token).status == 404
    refused = ask(daemon.http, "/metrics")
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert ask(daemon.http, "/healthz").headers["Date"].endswith(" GMT")
    host, port = daemon.http.split(":")
    with socket.create_connection((host, int(port)), HANG) as peer:
        peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n")
        assert b" 400 " in peer.recv(4096).split(b"\r\n")[0]


SETTINGS = [
    (["--listen", "bogus"], {}, "--listen: "), (["--listen", "127.0.0.1:99999"], {}, "--listen: "),
    (["--listen", "0.0.0.0:0"], {}, "--listen: "), (["--http", "127.0.0.1:abc"], {}, "--http: "),
    (["--tls-cert", "x"], {}, "--tls-cert: "), (["--tls-cert", "/none", "--tls-key", "/none"], {}, "--tls-cert: /none"),
    (["--proxy-socket", "/none/x"], {}, "--proxy-socket: "),
    ([], {"TELETENSOR_LISTEN": "bogus"}, "TELETENSOR_LISTEN: "),
    (["--snapshot-every", "-1"], {}, "--snapshot-every: expected a number from 0 to 10000000"),
    ([], {"TELETENSOR_DRAIN": "0"}, "TELETENSOR_DRAIN: expected a number above 0, at most 10000000"),
    ([], {"TELETENSOR_DRAIN": "abc"}, "TELETENSOR_DRAIN"), (["--config", "/none"], {}, "/none: "),
    (["--create-token", "a:nope"], {}, "role")]


@pytest.mark.parametrize("flags,environment,text", SETTINGS)
def test_a_wrong_setting_is_named_before_anything_is_made(flags, environment, text, tmp_path):
    state = tmp_path / "state"
    done = subprocess.run([binary(), "--socket", str(tmp_path / "s"), "--state-dir", str(state), *flags],
                          env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 2, done
    assert text in done.stderr and "00000000000000000000" not in done.stderr
    assert not (state / "sessions").exists() and not (tmp_path / "s").exists()


def test_a_wrong_setting_of_the_file_is_named(tmp_path):
    file = tmp_path / "t.toml"
    file.write_text('listen = "bogus"\n')
    done = subprocess.run([binary(), "--config", str(file), "--no-socket"],
                          capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 2 and f"{file}: listen: " in done.stderr
