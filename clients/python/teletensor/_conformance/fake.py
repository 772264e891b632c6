"""A fake daemon: it answers a transcript to any client, and compares what the client sends with it.

It serves what the protocol says of streams, sessions and transfers, and takes what commands compute from
the transcript. A client may send frames of other sizes than the transcript's, and may send commands and
calls that change nothing: Release, Taken, a Fetch with `describe` before a Fetch, Describe, ReportSites.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from .caller import ADMIN, COMPUTE, plain
from .runner import ids_of
from .schema import Schema
from .script import EPOCH, UNREADABLE, Difference, Placed, Script, Track, exact, several, spoken
from .transcript import filled

__all__ = ["FakeDaemon", "serve"]

Ending = tuple[str, str, str]  # code, word and text
STREAMS = {"Run": "stream_stream", "Upload": "stream_unary", "Download": "unary_stream"}
DONE = ("OK", "", "")
BROKEN = ("INVALID_ARGUMENT", "protocol")  # how a daemon ends the session of a client that is wrong
CUT = ("UNAVAILABLE", "", "the transcript cuts the transfer here")
FULL = ("RESOURCE_EXHAUSTED", "streams", "too many streams")
DEVICES = [{"name": "cpu", "memory": 1 << 30}]
LINGER = 5  # seconds that a client has for closing its sessions
Values = dict[str, Any]


class Session:
    """What the fake daemon knows of a session."""

    def __init__(self, name: str, token: str, track: Track, hello: Values) -> None:
        self.name, self.token, self.track = name, token, track
        self.instance, self.attach = hello.get("instance_id", b""), hello.get("attach_counter", 0)
        self.stream: queue.SimpleQueue[bytes | Ending] | None = None
        self.number, self.closed = 0, False
        self.kept: list[tuple[int, bytes]] = []  # Progress that is not acknowledged

    def end(self, ending: Ending) -> None:
        """Ends its Run stream."""
        if self.stream is not None:
            self.stream.put(ending)
            self.stream = None

    def acknowledge(self, upto: int) -> None:
        """Forgets the messages that the client has read."""
        self.kept = [(number, data) for number, data in self.kept if number > upto]


class FakeDaemon(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers transcripts at an address, one after the other. Threads: those of gRPC, and the caller's."""

    def __init__(self, address: str, patience: float = 10) -> None:
        self.schema, self.patience = Schema(strict=True), patience
        self.script: Script | None = None
        self.sessions: dict[str, Session] = {}  # by token
        self.uploads: dict[int, bytes] = {}  # by key
        self.server = grpc.server(futures.ThreadPoolExecutor(32), handlers=[self])
        try:
            port = self.server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen at {address}: {error}") from error
        self.address = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        self.server.start()

    def close(self) -> None:
        """Ends the server, when calls that are being answered have their answers."""
        self.server.stop(1).wait()

    def begin(self, path: Path) -> Script:
        """The next Hello begins this transcript."""
        script = Script(path, self.schema)
        script.end = self.end_stream
        with script.moved:
            self.sessions, self.uploads, self.script = {}, {}, script
            script.settle()
        return script

    def wait(self, script: Script, patience: float) -> str:
        """How the client differed from the transcript, or "".

        Returns when the transcript is over, or nothing has come for `patience` seconds.
        """
        with script.moved:
            while not script.over and script.moved.wait(patience):
                pass  # another step is done
            if not script.over:
                script.fail("expected this step, and the client has sent nothing more")
            # So that a client reads the last answer, and can close its sessions.
            script.moved.wait_for(lambda: all(each.closed for each in self.sessions.values()),
                                  min(patience, LINGER))
        return script.failure

    def playing(self) -> Script:
        if self.script is None:
            raise LookupError("no transcript is being played")
        return self.script

    def end_stream(self, name: str, code: str, word: str, text: str) -> None:
        for session in self.sessions.values():
            if session.name == name:
                session.end((code, word, text))

    # ---- calls

    def service(self, details: Any) -> Any:
        """The handler of a call, for grpc."""
        if not details.method.startswith((COMPUTE, ADMIN)):
            return None
        name = details.method.rpartition("/")[2]
        kind = STREAMS.get(name, "unary_unary")
        streams: dict[str, Callable[..., Any]] = {
            "Run": self.run, "Upload": self.upload, "Download": self.download}
        answer = streams.get(name, lambda data, context: self.unary(details.method, data, context))
        return getattr(grpc, f"{kind}_rpc_method_handler")(answer, plain, plain)

    def refuse(self, context: Any, ending: Ending) -> Any:
        """Ends a call with a status."""
        code, word, text = ending
        if word:
            context.set_trailing_metadata((("teletensor-reason", word),))
        context.abort(grpc.StatusCode[code], text)

    def guarded(self, context: Any, call: Callable[[], Any]) -> Any:
        """The result of `call`, under the script's lock; a difference ends the client's call."""
        script = self.playing()
        ending: Ending | None = None
        with script.moved:
            try:
                result = call()
                if not isinstance(result, tuple):
                    return result
                ending = result
            except Difference as difference:
                ending = (*BROKEN, str(difference))
            except UNREADABLE as error:
                ending = (*BROKEN, str(script.fail(f"{type(error).__name__}: {error}")))
        return self.refuse(context, ending)

    def session_of(self, context: Any) -> Session | None:
        return self.sessions.get(self.metadata(context, "teletensor-token"))

    @staticmethod
    def metadata(context: Any, key: str) -> str:
        found: dict[str, str] = dict(context.invocation_metadata())
        return found.get(key, "")

    def unary(self, method: str, data: bytes, context: Any) -> bytes:
        """A call with one message."""
        def call() -> Any:
            message, answer = self.schema.calls[method]
            reply = self.reply(method.rpartition("/")[2], self.schema.decode(message, data), context)
            return reply if isinstance(reply, tuple) else self.playing().encoded(answer, reply)
        return bytes(self.guarded(context, call))

    def reply(self, name: str, request: Values, context: Any) -> Values | Ending:
        script, session = self.playing(), self.session_of(context)
        step = script.current()
        if name == "Describe" and not (step and step.text.startswith("call Describe")):
            return self.description(request)
        if name == "Hello":
            return self.hello(request)
        words = (f"call {name}", f"call Admin.{name}", f"until {name}")
        written = step is not None and step.text.startswith(words)
        if name == "ReportSites" and not written:
            return {}
        if name == "Close" and session is not None:
            session.closed = True
            script.moved.notify_all()
        if name == "Close" and not written and (script.over or session is None or session.stream is None):
            return {}
        if name == "Staged" and not written:
            return self.staged(request)
        step = script.wait_for(*words, session=session.name if session else None, patience=self.patience)
        parser = script.parser(step.rest)
        parser.take()
        wanted = filled(parser.message())
        answer, ending = script.answer()
        if name == "Attach" and session is not None and ending is None:
            answer = {**self.attach(session, request), **answer}
        elif told := exact(wanted, {key: value for key, value in request.items()
                                    if name != "Attach" or key in wanted}):
            raise script.fail(told)
        if name == "Describe":
            answer = {**self.description(request), **answer}
        script.answered = answer
        script.advance()
        return ending or answer

    def description(self, request: Values) -> Values:
        ops = [dict(op) for op in self.playing().declared.values()]
        keys = ["name", "revision"]
        if request.get("declarations"):
            keys += ["signature", "results", "differentiable", "random", "internal", "updates", "inplace",
                     "view"]
        return {"server_version": "fake", "protocol_min": 1, "protocol_max": 2, "server_epoch": EPOCH,
                "devices": DEVICES, "limits": self.playing().limits,
                "ops": [{key: op[key] for key in keys} for op in ops], "max_sessions": 64}

    def hello(self, request: Values) -> Values | Ending:
        """Opens a session. Only the fields that the transcript has are compared.

        The lease and the first attach counter are the client's own choice.
        """
        script = self.playing()
        step = script.wait_for("hello", session=None, patience=self.patience)
        wanted = filled(script.parser(step.rest).message())
        compared = wanted.keys() - {"lease_seconds", "attach_counter"}
        if told := exact({key: wanted[key] for key in compared},
                         {key: request.get(key) for key in compared}):
            raise script.fail(told)
        if not request.get("instance_id") or not request.get("ops"):
            raise script.fail("Hello has an instance_id and ops")
        answer, ending = script.answer()
        if ending is None:
            track = script.tracks[step.session] = Track([op["name"] for op in request["ops"]])
            missing = [f"{op['name']} (revision {op['revision']})" for op in request["ops"]
                       if op["name"] not in script.declared]
            answer = {
                "protocol": min(request.get("protocol_max", 0), 2), "server_version": "fake",
                "server_epoch": EPOCH, "token": f"{len(self.sessions) + 1:032x}", "session_name": "fake",
                "session_id": 1, "lease_seconds": request.get("lease_seconds", 60), "devices": DEVICES,
                "thin": bool(request.get("thin")), "unsupported_ops": missing, **answer}
            answer["limits"] = {**script.limits, **answer.get("limits", {})}
            track.received = track.expected = answer.get("next_seq", 1) - 1
            track.next_id = answer.get("next_id", 1)
            self.sessions[answer["token"]] = Session(step.session, answer["token"], track, request)
        script.answered = answer
        script.advance()
        return ending or answer

    def attach(self, session: Session, request: Values) -> Values:
        """Checks what a client says of its session, and answers it."""
        script, track = self.playing(), session.track
        if request.get("instance_id") != session.instance:
            raise script.fail("instance_id: not that of Hello")
        if request.get("attach_counter", 0) <= session.attach:
            raise script.fail(f"attach_counter: above {session.attach} expected, "
                              f"{request.get('attach_counter', 0)} found")
        if request.get("server_epoch") != EPOCH:
            raise script.fail(f"server_epoch: {EPOCH} expected, {request.get('server_epoch')} found")
        for key, known in (("progress_upto", session.number), ("completed_upto", track.received)):
            if request.get(key, 0) > known:
                raise script.fail(f"{key}: at most {known} expected, {request[key]} found")
        session.attach = request["attach_counter"]
        session.acknowledge(request.get("progress_upto", 0))
        return {"server_epoch": EPOCH, "attach_counter": session.attach, "received_upto": track.received,
                "completed_upto": track.received, "lease_seconds": 60, "bytes_received": track.bytes}

    # ---- Run

    def run(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """The Run stream: reads frames in a thread of its own, and writes Progress."""
        outgoing: queue.SimpleQueue[bytes | Ending] = queue.SimpleQueue()
        context.add_callback(lambda: outgoing.put(("CANCELLED", "", "")))
        self.guarded(context, lambda: self.open_run(context, outgoing))
        session = self.session_of(context)
        threading.Thread(target=self.read, args=(frames, session, outgoing), daemon=True).start()
        while isinstance(item := outgoing.get(), bytes):
            yield item
        if item != DONE:
            self.refuse(context, item)

    def open_run(self, context: Any, outgoing: queue.SimpleQueue[bytes | Ending]) -> None:
        script, session = self.playing(), self.session_of(context)
        if session is None:
            raise script.fail("Run without a session's token")
        script.wait_for("run", session=session.name, patience=self.patience)
        counter = self.metadata(context, "teletensor-attach")
        if counter and counter != str(session.attach):
            raise script.fail(f"teletensor-attach: {session.attach} expected, {counter} found")
        session.stream = outgoing
        for _, data in session.kept:
            outgoing.put(data)
        script.advance()

    def read(self, frames: Iterator[bytes], session: Session,
             outgoing: queue.SimpleQueue[bytes | Ending]) -> None:
        script = self.playing()
        try:
            for data in frames:
                with script.moved:
                    if session.stream is not outgoing:
                        break
                    self.frame(session, data)
        except Difference as difference:
            outgoing.put((*BROKEN, str(difference)))
        except UNREADABLE as error:
            outgoing.put((*BROKEN, str(script.fail(f"{type(error).__name__}: {error}"))))
        except grpc.RpcError:  # the client has cut the stream
            pass
        outgoing.put(DONE)

    def frame(self, session: Session, data: bytes) -> None:
        script, track = self.playing(), session.track
        step = script.current()
        if step and step.word == "bytes" and step.session == session.name:
            return self.raw(session, data, step)
        frame = self.schema.decode("Frame", data)
        session.acknowledge(frame.get("ack_upto", 0))
        commands = several(frame.get("commands"))
        first = frame.get("first_seq", 0)
        if commands and first + len(commands) - 1 <= track.received:
            return None  # it had arrived
        track.bytes += len(data)
        for place, command in enumerate(commands):
            if script.is_extra(session.name, command):
                track.received += 1
                if place == len(commands) - 1:
                    self.progress(session)
                continue
            step = script.wait_for("frame", session=session.name, patience=self.patience)
            if place == 0:
                self.compare_numbers(session, frame, step)
            answer = script.take_command(track, command, step)
            track.received += 1
            track.next_id += ids_of(command)
            if answer is None:
                told = script.entries(session.name, track)
            else:
                told = self.schema.encode("Progress", {"fetched": [{**answer, "seq": track.received}]})
            if told or place == len(commands) - 1:
                self.progress(session, told)
            if answer is None and script.inside == len(script.commands(step)):
                script.advance()
        return None

    def compare_numbers(self, session: Session, frame: Values, step: Placed) -> None:
        """The frame's own numbers are the next ones, or those that the transcript gives."""
        script, track = self.playing(), session.track
        written = script.parser(step.rest).message()
        for key, wanted in (("first_seq", track.received + 1), ("first_id", track.next_id)):
            if frame.get(key, 0) != (wanted := written.get(key, wanted)):
                raise script.fail(f"{key}: {wanted} expected, {frame.get(key, 0)} found")
        # It is lower in a frame that was made before the last Attach.
        upto = max(session.attach, written.get("attach_counter", 0))
        counter = frame.get("attach_counter", 0)
        if counter > upto:
            raise script.fail(f"attach_counter: at most {upto} expected, {counter} found")

    def raw(self, session: Session, data: bytes, step: Placed) -> None:
        """A frame that the transcript has as bytes."""
        script, track = self.playing(), session.track
        wanted = bytes.fromhex(step.rest)
        if data != wanted:
            raise script.fail(f"{wanted.hex()} expected, {data.hex()} found (hex)")
        track.bytes += len(data)
        try:
            commands = several(self.schema.decode("Frame", data).get("commands"))
        except UNREADABLE:
            commands = []  # they are wrong on purpose
        for command in commands:
            track.received, track.expected = track.received + 1, track.expected + 1
            track.next_id += ids_of(command)
            self.progress(session, script.entries(session.name, track))
        script.advance()

    def progress(self, session: Session, told: bytes = b"") -> None:
        """Sends a Progress with these entries; all commands that have come have run."""
        script, track = self.playing(), session.track
        session.number += 1
        data = told + self.schema.encode("Progress", {
            "completed_upto": track.received, "received_upto": track.received,
            "credit_upto": script.limits["credit_upto"] + track.received,
            "credit_bytes": script.limits["credit_bytes"] + track.bytes, "number": session.number})
        if told:
            session.kept.append((session.number, data))
        if session.stream is not None:
            session.stream.put(data)

    # ---- transfers

    def upload(self, chunks: Iterator[bytes], context: Any) -> bytes:
        """Upload, perhaps with the bytes that an upload before it has left over."""
        script, session = self.playing(), self.session_of(context)
        key = int(self.metadata(context, "teletensor-upload") or 0)
        if not key and any(step.word == "hold_uploads" for step in script.steps):
            return bytes(self.refuse(context, FULL))
        step: Placed = self.guarded(context, lambda: script.wait_for(
            "upload", "cut_upload", "rest", session=session.name if session else None,
            patience=self.patience))
        parser = script.parser(step.rest)
        parser.value()
        written = [parser.message()] if step.word == "rest" else parser.items()
        if step.word == "upload" and script.answer()[1] is not None:
            return bytes(self.guarded(context, lambda: self.refused_upload(list(chunks), written)))
        wanted = b"".join(spoken(each)["data"] for each in written)
        data, first = bytes(self.uploads.get(key, b"")), None
        try:
            for each in chunks:
                chunk = self.schema.decode("UploadChunk", each)
                first, offset = first or chunk, len(data)
                if chunk.get("offset", 0) != offset:
                    text = f"offset: {offset} expected, {chunk.get('offset', 0)} found"
                    self.guarded(context, functools.partial(self.differs, text))
                data += chunk.get("data", b"")
                if step.word == "cut_upload" and len(data) >= len(wanted):
                    break
        except grpc.RpcError:
            pass
        if not context.is_active() or (step.word == "cut_upload" and len(data) < len(wanted)):
            with script.moved:  # the client has cut it itself
                if script.current() is step:
                    self.uploads[key] = data
            return bytes(self.refuse(context, CUT))
        return bytes(self.guarded(context, lambda: self.uploaded(
            step, key, wanted, data, first or {}, written)))

    def differs(self, text: str) -> None:
        raise self.playing().fail(text)

    def refused_upload(self, chunks: list[bytes], written: list[Values]) -> Ending:
        """The answer to an upload that is wrong on purpose, whose chunks are exactly the transcript's."""
        script = self.playing()
        for data, wanted in zip(chunks, written, strict=True):
            if told := exact(spoken(wanted), self.schema.decode("UploadChunk", data)):
                raise script.fail(told)
        _, ending = script.answer()
        script.advance()
        return ending or CUT

    def uploaded(self, step: Placed, key: int, wanted: bytes, data: bytes, first: Values,
                 written: list[Values]) -> Any:
        """The answer to an upload whose chunks have come."""
        script = self.playing()
        if script.current() is not step:
            return b""  # a part of an upload that was cut, and has been asked for since
        answer, ending = script.answer()
        total, cut = written[0].get("bytes", len(wanted)), step.word == "cut_upload"
        if first.get("bytes", 0) != total or (data[:len(wanted)] if cut else data) != wanted:
            raise script.fail(f"{total} bytes with {wanted.hex()} (hex) expected, "
                              f"{first.get('bytes', 0)} with {data.hex()} found")
        self.uploads[key] = wanted
        if cut:
            ending = CUT
        else:
            done = script.steps[:script.at + 1]
            answer = {"upload": sum(each.word in ("upload", "rest") for each in done), **answer}
            script.answered = answer
        script.advance()
        return ending or script.encoded("UploadReply", answer)

    def staged(self, request: Values) -> Values:
        """How much of an upload has come. The client may have cut it before its first byte."""
        script = self.playing()
        if (step := script.current()) and step.word == "cut_upload":
            script.advance()
        return {"received": len(self.uploads.get(request.get("key", 0), b""))}

    def download(self, data: bytes, context: Any) -> Iterator[bytes]:
        """Download; the transcript's reply has the data from the client's offset on."""
        ending: list[Ending] = []

        def call() -> Any:
            script, session = self.playing(), self.session_of(context)
            step = script.wait_for("download", "cut_download", session=session.name if session else None,
                                   patience=self.patience)
            wanted = filled(script.parser(step.rest[step.rest.index("{"):]).message())
            if session is not None and "seq" in wanted:
                wanted["seq"] = script.number(session.track, wanted["seq"])
            if told := exact(wanted, self.schema.decode("DownloadRequest", data)):
                raise script.fail(told)
            answer, refused = script.answer()
            script.advance()
            if step.word == "cut_download":
                ending.append(CUT)
            return refused or self.chunks(answer, wanted.get("offset", 0), script.limits["max_chunk_bytes"])
        yield from self.guarded(context, call)
        if ending:
            self.refuse(context, ending[0])

    def chunks(self, answer: Values, offset: int, size: int) -> list[bytes]:
        """A value in chunks of at most `size` bytes."""
        data = answer.get("data", b"")
        head = {"bytes": answer.get("bytes", offset + len(data)), "dtype": answer.get("dtype", 0),
                "shape": several(answer.get("shape"))}
        return [self.schema.encode("DownloadChunk", {
            **(head if at == 0 else {}), "offset": offset + at, "data": data[at:at + size]})
                for at in range(0, max(len(data), 1), size)]


def serve(daemon: FakeDaemon, path: Path, patience: float = 60) -> str:
    """Answers one transcript; how the client differed from it, or ""."""
    return daemon.wait(daemon.begin(path), patience)
