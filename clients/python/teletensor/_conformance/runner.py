"""Plays a transcript against a daemon."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .caller import ADMIN, COMPUTE, Caller, Refusal, Run
from .transcript import Parser, Step, complete, difference, filled, steps

__all__ = ["PROTOCOL", "Mismatch", "Player", "ids_of"]

PROTOCOL = 2
CALLS = 100  # at a time on a connection
# The errors that the kit's code raises when an answer cannot be read, or is not of the expected form.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, AssertionError, struct.error)


class Mismatch(Exception):
    """The daemon has not done what the transcript says."""


@dataclass
class Session:
    """The state of a session on the side of the player."""

    metadata: tuple[tuple[str, str], ...] = ()
    instance: bytes = b""
    run: Run | None = None
    attach: int = 0
    seq: int = 1
    next_id: int = 1
    told: dict[str, list[Any]] = field(default_factory=lambda: {"fetched": [], "errors": [], "raised": []})
    reached: dict[str, int] = field(default_factory=dict)  # numbers of Progress

    def stream(self) -> Run:
        """The open Run stream."""
        if self.run is None:
            raise ValueError("no `run` before")
        return self.run


def ids_of(command: dict[str, Any]) -> int:
    """The ids that a command takes, as the daemon counts them."""
    if "made" in command:
        return int(command["made"])
    if "op" in command:
        return 0 if command.get("inplace") else 1
    for kind in ("backward", "call"):
        if kind in command:
            return int(command[kind].get("made", 0))
    return int(any(kind in command for kind in ("constant", "uploaded", "saved", "published")))


def fnv1a(data: bytes) -> int:
    """The checksum of a Program."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return value


class Player:
    """Plays steps; Mismatch where an answer is not the transcript's.

    `golden`: a frame is sent as the transcript's bytes, if it has them without variables. `operator` does
    what the steps `operator WORDS` say, and returns the address of the daemon for the next steps.
    """

    golden = True

    def __init__(self, address: str, bearer: str | None = None, patience: float = 240,
                 operator: Callable[[list[str]], str] | None = None) -> None:
        self.caller = Caller(address, bearer, patience)
        self.bearer, self.operator = bearer, operator
        self.holding: list[Caller] = []  # connections whose calls are open
        self.revisions = self._revisions()
        self.names: dict[str, Any] = {}
        self.table: list[str] = []
        self.uploads: list[Any] = []
        self.step = Step(0, "", [])
        self.sessions = {"": Session()}
        self.session = self.sessions[""]
        self.reply: dict[str, Any] | None = None
        self.refusal: Refusal | None = None

    def _revisions(self) -> dict[str, int]:
        """The revision of each op of the daemon."""
        try:
            return {op["name"]: op["revision"] for op in self.caller.unary("Describe")["ops"]}
        except (Refusal, *_UNREADABLE) as error:
            self.caller.close()
            raise Mismatch(f"Describe: {error}") from error

    def close(self) -> None:
        """Ends the sessions."""
        for session in self.sessions.values():
            if session.run is not None:
                session.run.cut()
            if session.metadata:
                try:
                    self.caller.unary("Close", {}, session.metadata)
                except Refusal:
                    pass  # it has ended
        for each in (*self.holding, self.caller):
            each.close()

    def play(self, path: Path) -> None:
        """Plays one transcript."""
        for step in steps(path):
            self.step = step
            try:
                perform = getattr(self, f"do_{step.word}", None)
                if perform is None:
                    raise ValueError(f"no step {step.word!r}")
                plain = step.word in ("bytes", "operator")
                perform(step.rest if plain else Parser(step.rest, self.names))
            except (Mismatch, Refusal) as error:
                raise Mismatch(f"{path.name}:{step.line}: {step.text}\n    {error}") from error
            except _UNREADABLE as error:
                kind = type(error).__name__
                raise Mismatch(f"{path.name}:{step.line}: {step.text}\n    {kind}: {error}") from error

    def attempt(self, call: Callable[[], dict[str, Any]]) -> None:
        self.reply = self.refusal = None
        try:
            self.reply = call()
        except Refusal as refusal:
            self.refusal = refusal

    # ---- calls

    def do_ops(self, parser: Parser) -> None:
        self.table = []
        while parser.more():
            self.table.append(parser.take())
        self.names |= {f"@{name}": number for number, name in enumerate(self.table, 1)}

    def do_session(self, parser: Parser) -> None:
        self.session = self.sessions.setdefault(parser.take(), Session())

    def do_hello(self, parser: Parser) -> None:
        self.session.instance = os.urandom(16)
        request = {
            "protocol_min": PROTOCOL, "protocol_max": PROTOCOL, "client_version": "conformance",
            "instance_id": self.session.instance,
            "ops": [{"name": name, "revision": self.revisions.get(name, 1)} for name in self.table],
            **filled(parser.message())}
        self.attempt(lambda: self.caller.unary("Hello", request))
        if self.reply is None:
            return
        session = self.session
        session.metadata = (("teletensor-token", self.reply["token"]),)
        session.attach = request.get("attach_counter", 0)
        session.seq, session.next_id = self.reply.get("next_seq", 1), self.reply.get("next_id", 1)

    def do_hello_at_last(self, parser: Parser) -> None:
        """Says Hello again and again, while there is no place for the session."""
        at, end = parser.at, time.monotonic() + self.caller.patience
        while True:
            self.do_hello(parser)
            full = self.refusal is not None and self.refusal.code == "RESOURCE_EXHAUSTED"
            if not full or time.monotonic() > end:
                return
            parser.at = at
            time.sleep(0.2)

    def do_operator(self, text: str) -> None:
        """Asks the operator, and connects to the daemon at the address that it returns."""
        if self.operator is None:
            raise ValueError("needs an operator of the daemon")
        words = [str(self.names[word]) if word.startswith("$") else word for word in text.split()]
        address = self.operator(words)
        self.holding.append(self.caller)  # a stream may be open on it
        self.caller = Caller(address, self.bearer, self.caller.patience)

    def do_hold_uploads(self, parser: Parser) -> None:
        """Opens calls of Upload that send nothing, until one of them is refused."""
        count, refused = parser.value(), threading.Event()
        while count > 0:
            self.holding.append(self.caller.another())
            for _ in range(min(count, CALLS)):
                call, _ = self.holding[-1].cut_upload([], self.session.metadata)
                call.add_done_callback(lambda _: refused.set())
            count -= CALLS
        if not refused.wait(self.caller.patience):
            raise Mismatch("no call is refused")

    def do_call(self, parser: Parser) -> None:
        name = parser.take()
        request = filled(parser.message())
        service = ADMIN if name.startswith("Admin.") else COMPUTE
        name = name.removeprefix("Admin.")
        if name == "Attach":
            request.setdefault("instance_id", self.session.instance)
            self.session.attach = request.get("attach_counter", 0)
        self.attempt(lambda: self.caller.unary(name, request, self.session.metadata, service))

    def do_until(self, parser: Parser) -> None:
        """Repeats a call until it is refused."""
        name = parser.take()
        request = filled(parser.message())
        end = time.monotonic() + self.caller.patience
        while True:
            self.attempt(lambda: self.caller.unary(name, request, self.session.metadata))
            if self.refusal is not None or time.monotonic() > end:
                return
            time.sleep(0.05)

    def do_token(self, parser: Parser) -> None:
        """Calls of the session have this token from now on."""
        self.session.metadata = (("teletensor-token", parser.value()),)

    def do_bearer(self, parser: Parser) -> None:
        """Calls of the session have this token of a user from now on."""
        self.session.metadata = (*self.session.metadata, ("authorization", f"Bearer {parser.value()}"))

    def do_reply(self, parser: Parser) -> None:
        if self.refusal is not None:
            raise Mismatch(f"refused: {self.refusal}")
        self.demand(difference(parser.message(), self.reply))

    def do_refused(self, parser: Parser) -> None:
        if self.refusal is None:
            raise Mismatch(f"not refused: {self.reply}")
        self.compare(self.refusal, parser)

    def do_save(self, parser: Parser) -> None:
        name, key = parser.take(), parser.take()
        value: Any = self.reply or {}
        for part in key.split("."):
            value = value[int(part) if part.isdigit() else part]
        self.names[f"${name}"] = value

    def do_program(self, parser: Parser) -> None:
        """A Program: revisions of its ops and its checksum are filled in."""
        name, fields = parser.take(), filled(parser.message())
        fields["ops"] = [{"name": op, "revision": self.revisions[op]} for op in fields["ops"]]
        data = self.caller.schema.encode("Program", fields)
        checksum = self.caller.schema.encode("Program", {"checksum": fnv1a(data)})
        self.names[f"${name}"] = data + checksum

    def do_forget(self, _: Parser) -> None:
        """Forgets the messages received so far."""
        self.session.told = {key: [] for key in self.session.told}
        self.session.reached = {}

    def do_upload(self, parser: Parser) -> None:
        key, chunks = parser.value(), filled(parser.items())
        metadata = (*self.session.metadata, ("teletensor-upload", str(key)))
        self.attempt(lambda: self.caller.upload(chunks, metadata))

    def do_cut_upload(self, parser: Parser) -> None:
        key, chunks = parser.value(), filled(parser.items())
        metadata = (*self.session.metadata, ("teletensor-upload", str(key)))
        call, outgoing = self.caller.cut_upload(chunks, metadata)
        self.uploads.append(outgoing)
        call.cancel()

    def do_rest(self, parser: Parser) -> None:
        """Uploads the bytes that Staged says are missing."""
        key, whole = parser.value(), filled(parser.message())
        received = self.caller.unary("Staged", {"key": key}, self.session.metadata).get("received", 0)
        data = whole["data"]
        chunk = {**whole, "bytes": len(data), "offset": received, "data": data[received:]}
        metadata = (*self.session.metadata, ("teletensor-upload", str(key)))
        self.attempt(lambda: self.caller.upload([chunk], metadata))

    def do_download(self, parser: Parser) -> None:
        request = filled(parser.message())
        self.attempt(lambda: self.caller.download(request, self.session.metadata))

    def do_cut_download(self, parser: Parser) -> None:
        """A download whose stream is cancelled when this number of bytes has come."""
        count, request = parser.value(), filled(parser.message())
        self.attempt(lambda: self.caller.download(request, self.session.metadata, count))

    def do_limits(self, parser: Parser) -> None:
        """The limits that the fake daemon has in this transcript."""
        parser.message()

    # ---- the stream

    def do_run(self, parser: Parser) -> None:
        session = self.session
        metadata = session.metadata
        if parser.more():
            metadata = (*metadata, ("teletensor-attach", str(parser.value())))
        session.run = self.caller.run(metadata)

    def do_frame(self, parser: Parser) -> None:
        session = self.session
        frame = filled(parser.message())
        commands = frame.get("commands", [])
        commands = commands if isinstance(commands, list) else [commands]
        frame = {"first_seq": session.seq, "first_id": session.next_id,
                 "attach_counter": session.attach, **frame}
        session.seq = frame["first_seq"] + len(commands)
        session.next_id = frame["first_id"] + sum(ids_of(command) for command in commands)
        known = self.golden and self.step.golden and "$" not in self.step.text
        session.stream().send(self.step.golden[0][1] if known else frame)

    def do_bytes(self, text: str) -> None:
        self.session.stream().send(bytes.fromhex(text))

    def read(self) -> None:
        """Takes in the next Progress."""
        session = self.session
        progress = session.stream().read()
        if progress is None:
            raise Mismatch("the server has ended the stream, with OK")
        for key, value in progress.items():
            if key in session.told:
                session.told[key] += value
            else:
                session.reached[key] = max(session.reached.get(key, 0), value)

    def do_told(self, parser: Parser) -> None:
        key = parser.take()
        if parser.peek() != "{":
            wanted = parser.value()
            reached = self.session.reached
            while reached.get(key, 0) < wanted:
                if key != "completed_upto" and reached.get("completed_upto", 0) >= self.session.seq - 1:
                    raise Mismatch(f"{key}: {wanted} expected, {reached.get(key, 0)} told, and all has run")
                self.read()
            return
        expected = complete(parser.message())
        command = expected.get("root" if key == "errors" else "seq", 0)
        while True:
            entries = self.session.told[key]
            same = [each for each in entries
                    if each.get("root" if key == "errors" else "seq", 0) == command]
            if same:
                return self.demand(difference(expected, same[-1], key))
            if self.session.reached.get("completed_upto", 0) >= command:
                raise Mismatch(f"{key}: command {command} has run, and nothing is told of it: {entries}")
            self.read()

    def do_never(self, parser: Parser) -> None:
        key, expected = parser.take(), parser.message()
        if any(not difference(expected, each) for each in self.session.told[key]):
            raise Mismatch(f"{key}: {self.session.told[key]}")

    def do_ended(self, parser: Parser) -> None:
        try:
            while True:
                self.read()
        except Refusal as refusal:
            self.compare(refusal, parser)

    def do_cut(self, parser: Parser) -> None:
        self.session.stream().cut()

    # ---- comparing

    def compare(self, refusal: Refusal, parser: Parser) -> None:
        code, word = parser.take(), parser.take()
        text = parser.value() if parser.more() else ""
        word = "" if word == "-" else word
        if refusal.code != code or text not in refusal.text or refusal.reason != word:
            raise Mismatch(f"ended otherwise: {refusal}")

    def demand(self, told: str) -> None:
        if told:
            raise Mismatch(told)
