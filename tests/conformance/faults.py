"""Does the conformance kit find faults of the daemon's streams? `make faults` puts them in one at a time.

A fault replaces one expression of the daemon. One build has all of them, beside the release build
(tests/mutation/build.py), and the environment chooses one. Each fault has to fail the transcript that its row names,
and without a fault all transcripts have to pass; otherwise the exit status is 1.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mutation"))
from sites import Site
from support.daemon import Daemon
from teletensor._conformance.command import play_all

from build import ROOT, Build, Mutant

# (what is wrong, file, expression, what replaces it, the transcript that finds it)
FAULTS = [
    ("a frame that is sent again runs twice", "server/session/outbox.cc",
     "keeps_ && first_seq <= received_ && first_seq + count - 1 <= received_", "false", "attach"),
    ("the credits for commands do not grow", "server/session/outbox.cc",
     "progress.credit_upto = told_.credit_upto = credit_upto()", "progress.credit_upto = told_.credit_upto", "credits"),
    ("the credits for bytes do not grow", "server/session/outbox.cc",
     "progress.credit_bytes = told_.credit_bytes = credit_bytes()", "progress.credit_bytes = told_.credit_bytes",
     "credits"),
    ("late errors are lost", "server/session/outbox.cc",
     "errors_.take_errors()", "decltype(errors_.take_errors()){}", "thin"),
    ("a Progress that was not acknowledged is not sent again", "server/session/outbox.cc",
     "kept_.rewind(number)", "(kept_.forget_upto(number_), true)", "attach"),
    ("an attach counter may stay", "server/session/lease/lease_streams.cc",
     "call.attach <= attach_", "false", "attach"),
    ("another client may attach", "server/session/lease/lease_streams.cc",
     "call.instance != client_.instance", "false", "attach"),
    ("an Attach may claim commands that were never sent", "server/session/lease/lease_streams.cc",
     "origin_ == Origin::kHello && call.completed > outbox_.received_upto()", "false", "attach"),
    ("an older stream is not fenced", "server/session/lease/lease_streams.cc",
     "result.older = run_.lock()", "result.older = nullptr", "attach"),
    ("a frame of an attach that was not made is taken", "server/session/lease/lease_streams.cc",
     "frame.attach_counter > attach_", "false", "refusals"),
    ("chunks of an upload overwrite each other", "server/session/lease/staging.cc",
     "received_ += data.size()", "received_ += 0", "bulk"),
    ("a download always begins at 0", "server/stream/download_stream.cc",
     "header_.offset = asked_.offset", "header_.offset = 0", "bulk"),
]


def mutants():
    found = []
    for number, (what, path, original, broken, _) in enumerate(FAULTS, 1):
        source = (ROOT / path).read_text(encoding="utf-8")
        if source.count(original) != 1:
            raise SystemExit(f"{path}: {original!r} is there {source.count(original)} times")
        start, end = source.index(original), source.index(original) + len(original)
        found.append(Mutant(number, path, source[:start].count("\n") + 1, Site("fault", start, end, broken, what)))
    return found


def played(fault, patience):
    """The transcripts that do not pass with a fault, and the first difference."""
    daemon = Daemon("--lease", "600", env={"MUTANT": str(fault)})
    try:
        return {name: told for name, told in play_all(daemon.unix, patience=patience) if told}
    finally:
        daemon.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=5, help="seconds that a call may take [5]")
    options = parser.parse_args()
    folder = ROOT / "build/faults"
    shutil.rmtree(folder, ignore_errors=True)
    built = Build(ROOT / "build/release", folder / "tree", mutants())
    programs = built.make(["bin/teletensord"], options.jobs)
    os.environ["TELETENSORD"] = str(programs["bin/teletensord"])
    missed = [f"{mutant.site.what}: does not compile" for mutant in built.dropped]
    if told := played(0, options.timeout):
        raise SystemExit(f"without a fault: {told}")
    for number, (what, path, _, _, transcript) in enumerate(FAULTS, 1):
        told = played(number, options.timeout)
        print(f"{'found' if transcript in told else 'MISSED'}  {what} ({path}): {', '.join(told) or '-'}\n"
              f"  {told.get(transcript, '')}", flush=True)
        if transcript not in told:
            missed.append(what)
    print(f"{len(FAULTS) - len(missed)} of {len(FAULTS)} faults found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
