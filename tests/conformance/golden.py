"""Writes the bytes of messages into the conformance kit's transcripts: `python tests/conformance/golden.py`.

protoc's classes make them from the text, so neither the kit's encoder nor those of the daemon have a part in them. A
variable that a daemon chooses is 1, as the kit's fake daemon chooses it; the instance is the bytes 0 to 15.
"""

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.raw import messages
from teletensor._conformance.fake import FakeDaemon
from teletensor._conformance.runner import Player
from teletensor._conformance.script import spoken
from teletensor._conformance.transcript import Parser, complete

SOURCES = Path(__file__).resolve().parents[2] / "clients/python/teletensor/_conformance/transcripts"
WIDTH = 96  # digits on a line
# The reply of a step that makes a call.
REPLIES = {"hello": "HelloReply", "hello_at_last": "HelloReply", "upload": "UploadReply", "rest": "UploadReply",
           "download": "DownloadChunk", "cut_download": "DownloadChunk"}


def built(name, values):
    """The message of protoc's class with these fields."""
    session, program, admin, _ = messages()
    kind = next(getattr(module, name) for module in (session, program, admin) if hasattr(module, name))
    return kind(**shaped(kind.DESCRIPTOR, values))


def shaped(descriptor, values):
    """The fields as the class's constructor takes them: repeated ones as lists."""
    found = {}
    for name, value in values.items():
        field = descriptor.fields_by_name[name]
        several = value if isinstance(value, list) else [value]
        if field.message_type is not None:
            several = [shaped(field.message_type, each) for each in several]
        found[name] = several if field.is_repeated else several[0]
    return found


class Recorder(Player):
    """Plays a transcript with the fake daemon and notes the messages of each step, by its line."""

    def __init__(self, address):
        self.found, self.last = {}, ""
        super().__init__(address, patience=20)
        encode = self.caller.schema.encode
        requests = {request for request, _ in self.caller.schema.calls.values()}

        def noted(name, values):
            if name in requests:
                instance = {"instance_id": bytes(range(16))} if "instance_id" in values else {}
                self.found.setdefault(self.step.line, []).append((name, {**values, **instance}))
            return encode(name, values)
        self.caller.schema.encode = noted

    def attempt(self, call):
        self.last = self.step
        super().attempt(call)

    def do_operator(self, text):
        """Nothing: the fake daemon answers as the transcript says."""

    def do_program(self, parser):
        super().do_program(parser)
        self.found.pop(self.step.line, None)  # the bytes are in the frame that defines it

    def do_reply(self, parser):
        super().do_reply(parser)
        kind = REPLIES.get(self.last.word)
        if kind is None:
            service, _, name = self.last.rest.split()[0].rpartition(".")
            _, kind = self.caller.schema.calls[f"/teletensor.v1.{service or 'Compute'}/{name}"]
        self.found[self.step.line] = [(kind, spoken(Parser(self.step.rest, self.names).message()))]

    def do_told(self, parser):
        key, _, fields = self.step.rest.partition(" ")
        super().do_told(parser)
        if fields.startswith("{"):
            self.found[self.step.line] = [
                ("Progress", {key: [spoken(complete(Parser(fields, self.names).message()))]})]


def plain(text):
    """A transcript without bytes."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("="))


def fresh(daemon, text, name):
    """The transcript with the bytes of its messages."""
    text = plain(text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.txt"
        path.write_text(text, encoding="utf-8")
        daemon.begin(path)
        recorder = Recorder(daemon.address)
        try:
            recorder.play(path)
            found = {line: list(each) for line, each in recorder.found.items()}
        finally:
            recorder.close()
    lines, out, depth = text.splitlines(), [], 0
    pending = []
    for number, line in enumerate(lines, 1):
        pending += found.pop(number, [])
        out.append(line)
        bare = re.sub(r'"[^"]*"', "", re.sub(r"(^|\s)#.*", "", line))
        depth += sum({"{": 1, "[": 1, "}": -1, "]": -1}.get(c, 0) for c in bare)
        if depth == 0 and pending:
            for kind, values in pending:
                out += shown(kind, built(kind, values).SerializeToString(deterministic=True).hex())
            pending = []
    return "".join(f"{line}\n" for line in out)


def shown(kind, digits):
    """Lines of hex; an empty message has no digits."""
    parts = [digits[at:at + WIDTH] for at in range(0, len(digits), WIDTH)] or [""]
    return [f"= {kind}: {parts[0]}".rstrip(), *(f"=   {part}" for part in parts[1:])]


def main():
    daemon = FakeDaemon("127.0.0.1:0")
    try:
        for path in sorted(SOURCES.glob("*.txt")):
            path.write_text(fresh(daemon, path.read_text(encoding="utf-8"), path.stem), encoding="utf-8")
    finally:
        daemon.close()


if __name__ == "__main__":
    main()
