"""The commands of `teletensor` for operators: sessions, memory, top, slowlog, groups, kill, snapshot,
..."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from .._connection.credentials import credentials_of
from .._connection.daemon import runtime_dir
from .._connection.reach import fault_of
from .._connection.transport import PERMISSION_DENIED, CallError, Transport, open_transport
from .._sessions.errors import TeletensorError
from .._sessions.session import connect
from .admin import Admin, bytes_text

__all__ = ["add_commands", "explained", "number", "transport", "with_address"]

_MOST = 2**31 - 1


def _address_of(given: str | None) -> str:
    """The address of the daemon: --address, or else TELETENSOR_ADDRESS, or else this user's socket."""
    return given or os.environ.get("TELETENSOR_ADDRESS") or f"unix:{runtime_dir()}/teletensor.sock"


def with_address(parser: argparse.ArgumentParser, table: bool = False) -> argparse.ArgumentParser:
    """Adds --address, and --json for commands that print a table."""
    parser.add_argument("--address", help="host:port, unix:/path or a path "
                        "[TELETENSOR_ADDRESS, else this user's socket]")
    if table:
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser


@contextlib.contextmanager
def transport(args: argparse.Namespace) -> Iterator[Transport]:
    """A connection to the daemon that the arguments name."""
    connection = open_transport(_address_of(args.address), timeout=3.0)
    try:
        yield connection
    finally:
        connection.close()


def explained(given: str | None, error: CallError) -> str:
    """Explains why a call to that daemon has failed."""
    if not error.unreachable:
        return str(error)
    address = _address_of(given)
    return f"no teletensord answers at {address}: {fault_of(credentials_of(address)) or error}"


def _used(session: dict[str, Any], field: str = "used") -> int:
    return sum(m[field] for m in session["memory"])


@contextlib.contextmanager
def _new_file(path: str) -> Iterator[TextIO]:
    """A new file that only its owner can read; it is removed if the block raises an error."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        try:
            yield file
            file.flush()
        except BaseException:
            os.unlink(path)
            raise


def _token(args: argparse.Namespace) -> int:
    """Prints the secret of a token once, on standard output; a secret is never accepted on a command
    line."""
    with transport(args) as connection:
        admin = Admin(connection)
        if args.action == "create":
            with _new_file(args.output) if args.output else contextlib.nullcontext(sys.stdout) as file:
                made = admin.create_token(args.user, args.role, args.days * 86400)
                print(made["secret"], file=file)
            print(f"token {made['id']} of {args.user}, role {args.role}; it is not shown again",
                  file=sys.stderr)
        elif args.action == "revoke":
            admin.revoke_token(args.id)
            print(f"token {args.id} is revoked")
            if not any(_state_of(token) == "good" for token in admin.tokens()):
                print("no good token is left: only the daemon's own user gets in, on its socket, until "
                      "`teletensor token create`", file=sys.stderr)
        else:
            found = admin.tokens()
            if args.json:
                print(json.dumps(found))
                return 0
            rows: list[tuple[str, ...]] = [("ID", "USER", "ROLE", "CREATED", "EXPIRES", "STATE")]
            rows += [(t["id"], t["user"], t["role"], _day(t["created"]),
                      _day(t["expires"]) if t["expires"] else "never",
                      _state_of(t)) for t in found]
            _table(rows)
    return 0


def _state_of(token: dict[str, Any]) -> str:
    if token["revoked"]:
        return "revoked"
    return "expired" if 0 < token["expires"] <= time.time() else "good"


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def _where(tensor: dict[str, Any]) -> str:
    if not tensor["away"]:
        return str(tensor["device"])
    return "disk" if tensor["device"] == "cpu" else f"{tensor['device']}, moved away"


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _sessions(args: argparse.Namespace) -> int:
    with transport(args) as connection:
        found, others = Admin(connection).sessions()
    if args.json:
        print(json.dumps(found))
        return 0
    rows: list[tuple[str, ...]] = [
        ("ID", "USER", "SESSION", "AGE", "CLIENT", "HANDLES", "QUEUED", "USED", "PEAK", "LANE TIME",
         "VERSION")]
    rows += [(str(s["id"]), s["user"], s["name"], f"{s['age_seconds']:.0f} s",
              "attached" if s["attached"] else f"left {s['detached_seconds']:.0f} s ago", str(s["handles"]),
              str(s["queued"]), bytes_text(_used(s)), bytes_text(_used(s, "peak")),
              f"{s['lane_seconds']:.2f} s", s["client_version"]) for s in found]
    _table(rows)
    for s in found:
        if s["not_saved"]:
            print(f"session {s['id']} was not saved: {s['not_saved']}")
    if others is not None:
        print(f"and {others['sessions']} of others, which use {bytes_text(_used(others))} together")
    return 0


def _publications(admin: Admin) -> list[dict[str, Any]]:
    """None if the caller may see only totals."""
    try:
        return admin.publications()
    except CallError as error:
        if error.code != PERMISSION_DENIED:
            raise
        return []


def _memory(args: argparse.Namespace) -> int:
    tensors: list[dict[str, Any]] = []
    limits: dict[str, dict[str, int]] = {}
    common: list[dict[str, Any]] = []
    activity: dict[str, dict[str, Any]] = {}
    with transport(args) as connection:
        if args.session:
            admin = Admin(connection)
            held = admin.holdings(_number_of(admin, args.session), 50)
            memory, tensors = held["session"]["memory"], held["tensors"]
            limits = held["session"]["limits"]
        else:
            memory, activity = Admin(connection).devices()
            common = _publications(Admin(connection))
    if args.json:
        print(json.dumps({"memory": memory, "tensors": tensors, "limits": limits} if args.session
                         else common if args.published else memory))
        return 0
    rows: list[tuple[str, ...]] = [("DEVICE", "USED", "PEAK", "QUOTA" if args.session else "TOTAL")]
    rows += [(m["device"], bytes_text(m["used"]), bytes_text(m["peak"]),
              bytes_text(m["quota" if args.session else "device_total"])) for m in memory]
    rows += [("disk", bytes_text(m["disk_used"]), f"holds {bytes_text(m['away'])}",
              bytes_text(m["disk_quota"])) for m in memory if m["disk_quota"]]
    _table(rows)
    if activity:
        print()
        _table([("GPU", "HELD", "BUSY", "IN FLIGHT", "KERNELS", "ON THE HOST"),
                *((m["device"], bytes_text(m["device_held"]), f"{a['busy_seconds']:.1f} s",
                   str(a["in_flight"]), str(a["kernels"]), str(a["on_host"]))
                  for m in memory if (a := activity.get(m["device"])))])
    if limits:
        print()
        _table([("SESSION HAS", "OF AT MOST", "LIMIT"),
                *((str(use["used"]), str(use["limit"] or "its memory"), f"session_{name}")
                  for name, use in limits.items())])
    if tensors:
        print()
        _table([("BYTES", "SHAPE", "DTYPE", "ON", "MADE BY"),
                *((bytes_text(t["bytes"]), str(t["shape"]) if t["dtype"] else "", t["dtype"], _where(t),
                   t["site"] or f"command {t['command']}") for t in tensors)])
    if common:
        print()
        _table([("PUBLISHED", "BYTES", "DEVICE", "OTHERS MAY", "USERS"),
                *((f"{p['user']}/{p['name']}", bytes_text(p["bytes"]), p["device"],
                   "write" if p["writable"] else "read", " ".join(p["users"]) or "own sessions")
                  for p in common)])
    return 0


def _top_rows(found: list[dict[str, Any]], before: dict[int, float], seconds: float
              ) -> list[tuple[str, ...]]:
    rows = []
    for s in found:
        share = (s["lane_seconds"] - before.get(s["id"], s["lane_seconds"])) / max(seconds, 1e-9)
        rows.append((share, s))
    rows.sort(key=lambda row: (-row[0], -_used(row[1])))
    return [("ID", "USER", "SESSION", "LANES", "LANE TIME", "QUEUED", "BEHIND", "WAIT",
             "USED"),
            *((str(s["id"]), s["user"], s["name"], f"{share:.2f}", f"{s['lane_seconds']:.1f} s",
               str(s["queued"]), str(s["ahead"]), f"{s['wait_seconds']:.1f} s", bytes_text(_used(s)))
              for share, s in rows)]


def _load(activity: dict[str, Any] | None, before: float | None, seconds: float) -> str:
    """How busy a GPU has been in the last interval, such as ", busy 0.83, 4 batches in flight"."""
    if activity is None:
        return ""
    busy = activity["busy_seconds"]
    share = (busy - (busy if before is None else before)) / max(seconds, 1e-9)
    return f", busy {share:.2f}, {activity['in_flight']} batches in flight"


def _top(args: argparse.Namespace) -> int:
    """Shows the lanes in use by each session, as `top` shows cores."""
    with transport(args) as connection:
        admin = Admin(connection)
        rounds = 0
        before: dict[int, float] = {}
        busy: dict[str, float] = {}
        at = time.monotonic()
        while True:
            found, others = admin.sessions()
            devices, activity = admin.devices()
            now = time.monotonic()
            if rounds:
                if sys.stdout.isatty():
                    print("\x1b[H\x1b[2J", end="")
                for m in devices:
                    print(f"{m['device']}: {bytes_text(m['used'])} of "
                          f"{bytes_text(m['device_total'])} in use"
                          + _load(activity.get(m["device"]), busy.get(m["device"]), now - at))
                if others is not None:
                    print(f"{others['sessions']} sessions of others: {bytes_text(_used(others))}")
                _table(_top_rows(found, before, now - at))
                sys.stdout.flush()
            if 0 < args.count <= rounds:
                return 0
            before, at = {s["id"]: s["lane_seconds"] for s in found}, now
            busy = {device: a["busy_seconds"] for device, a in activity.items()}
            rounds += 1
            time.sleep(args.interval)


def _slow_log(args: argparse.Namespace) -> int:
    with transport(args) as connection:
        entries = Admin(connection).slow_log(args.most)
    if args.json:
        print(json.dumps(entries))
        return 0
    rows: list[tuple[str, ...]] = [("AGO", "TOOK", "OP", "USER", "SESSION", "ISSUED AT")]
    rows += [(f"{e['age_seconds']:.0f} s", f"{e['seconds'] * 1000:.0f} ms", e["op"], e["user"],
              f"{e['session']} {e['name']}", e["site"] or f"command {e['command']}") for e in entries]
    _table(rows)
    return 0


def _member(member: dict[str, Any]) -> str:
    where = f"daemon {member['daemon']}" if member["daemon"] else ""
    told = ", ".join(part for part in (member["who"], where, "waits" if member["waits"] else "") if part)
    return f"{member['rank']}: {told}"


def _groups(args: argparse.Namespace) -> int:
    with transport(args) as connection:
        found = Admin(connection).groups()
    if args.json:
        print(json.dumps(found))
        return 0
    rows: list[tuple[str, ...]] = [("USER", "GROUP", "RANKS", "STATE", "COLLECTIVES", "JOINED")]
    for group in found:
        state = group["state"] + (f": {group['why']}" if group["why"] else "")
        first, *others = [_member(member) for member in group["members"]] or [""]
        rows.append((group["user"], group["name"], f"{len(group['members'])} of {group['ranks']}", state,
                     str(group["collectives"]), first))
        rows += [("", "", "", "", "", other) for other in others]
    _table(rows)
    return 0


def _session_of(admin: Admin, wanted: int | str) -> dict[str, Any]:
    """The session with this number or name among those that the caller may see."""
    found = [s for s in admin.sessions()[0] if wanted in (s["id"], s["name"])]
    if not found:
        raise TeletensorError(f"there is no session {wanted!r}, or you may not see it; `teletensor "
                              "sessions` lists them")
    if len(found) > 1:
        which = ", ".join(f"{s['id']} of {s['user']}" for s in found)
        raise TeletensorError(f"{len(found)} sessions have the name {wanted!r}: give the session's number "
                              f"instead ({which})")
    return found[0]


def _number_of(admin: Admin, wanted: int | str) -> int:
    return wanted if isinstance(wanted, int) else int(_session_of(admin, wanted)["id"])


def _kill(args: argparse.Namespace) -> int:
    with transport(args) as connection:
        admin = Admin(connection)
        session = _session_of(admin, args.session)
        which = f"session {session['id']} \"{session['name']}\" of {session['user']}"
        if args.interrupt:
            admin.interrupt(session["id"])
            print(f"what {which} had queued is dropped")
        else:
            admin.kill(session["id"], args.reason)
            print(f"{which} is ended")
    return 0


def _snapshot(args: argparse.Namespace) -> int:
    bad = 0
    with transport(args) as connection:
        admin = Admin(connection)
        found, _ = admin.sessions()
        wanted = [_number_of(admin, s) for s in args.session] or [s["id"] for s in found]
        names = {s["id"]: s["name"] for s in found}
        done: list[dict[str, Any]] = []
        for session in wanted:
            entry = {"id": session, "name": names.get(session, "")}
            try:
                done.append({**entry, **admin.snapshot(session)})
            except CallError as error:
                if error.unreachable:
                    raise
                done.append({**entry, "error": str(error)})
                bad += 1
    if args.json:
        print(json.dumps(done))
    else:
        _table([("ID", "SESSION", "BYTES", "TOOK", "UP TO COMMAND"),
                *((str(s["id"]), s["name"], bytes_text(s["bytes"]), f"{s['seconds']:.3f} s",
                   str(s["command"])) if "error" not in s
                  else (str(s["id"]), s["name"], "not written: " + s["error"]) + ("", "")
                  for s in done)])
    return 1 if bad else 0


def _move(args: argparse.Namespace) -> int:
    with transport(args) as connection:
        admin = Admin(connection)
        session = _session_of(admin, args.session)
        done = {"id": session["id"], "name": session["name"],
                **admin.move(session["id"], args.to, args.timeout)}
    print(json.dumps(done) if args.json else _moved(done, args.to))
    return 0


def _moved(done: dict[str, Any], to: str) -> str:
    return (f"session {done['id']} \"{done['name']}\" has moved to {to} at {done['address']}: "
            f"{bytes_text(done['bytes'])}, {done['seconds']:.3f} s at rest")


def _empty(args: argparse.Namespace) -> int:
    """Moves all sessions to a peer, one after the other."""
    moved: list[dict[str, Any]] = []
    stay: list[dict[str, Any]] = []
    current: dict[str, Any] | None = None

    def say(text: str) -> None:
        if not args.json:
            print(text, flush=True)

    with transport(args) as connection:
        admin = Admin(connection)
        admin.admit(False, f"it is being emptied, and its sessions move to {args.to!r}", to=args.to)
        try:
            while found := [s for s in admin.sessions()[0] if s["id"] not in {e["id"] for e in stay}]:
                current = entry = {key: found[0][key] for key in ("id", "name", "user")}
                try:
                    done = {**entry, **admin.move(entry["id"], args.to, args.timeout)}
                except CallError as error:
                    stay.append({**entry, "reason": str(error)})
                    say(f"session {entry['id']} \"{entry['name']}\" of {entry['user']} stays: {error}")
                    continue
                moved.append(done)
                say(_moved(done, args.to))
            current = None
        except KeyboardInterrupt:
            say(f"interrupted after {len(moved)} sessions" +
                (f"; the daemon still decides on session {current['id']}" if current else "") +
                "; it opens no new sessions until `teletensor drain --cancel`")
            raise
    if args.json:
        print(json.dumps({"moved": moved, "stay": stay}))
    else:
        print(f"sessions moved to {args.to}: {len(moved)}; staying here: {len(stay)}"
              + ("".join(f"\n  {s['id']} \"{s['name']}\" of {s['user']}: {s['reason']}" for s in stay)))
    return 1 if stay else 0


def _drain(args: argparse.Namespace) -> int:
    if args.cancel:
        with transport(args) as connection:
            Admin(connection).admit(True)
        return 0
    if args.to:
        return _empty(args)
    with transport(args) as connection:
        result = Admin(connection).drain(args.seconds)
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{result['kept']} sessions are kept for the next daemon, {len(result['lost'])} not")
        for s in result["lost"]:
            print(f"session {s['id']} \"{s['name']}\" of {s['user']} "
                  f"{'goes back to its last snapshot' if s['goes_back'] else 'is lost'}: {s['reason']}")
    return 1 if result["lost"] else 0


def _bench(args: argparse.Namespace) -> int:
    """Measures this daemon from here: the time of one op, of reading a value, of moving bytes."""
    import numpy as np

    from .. import _functions as tt
    from .._tensors.follow import from_numpy

    def median(action: Callable[[], object], runs: int) -> float:
        times = []
        for _ in range(runs):
            begin = time.perf_counter()
            action()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    with connect(args.address) as session, session:
        x = tt.ones(64)

        def chain() -> None:
            y = x
            for _ in range(1000):
                y = y + 1
            y.sum().item()

        def product() -> None:
            a = tt.ones(1024, 1024)
            (a @ a).sum().item()

        data = np.ones(8 << 20, np.float32)
        held = from_numpy(data)
        scalar = x.sum()
        seconds = {"small_op_seconds": median(chain, 5) / 1000,
                   "read_seconds": median(lambda: (scalar + 1).item(), 50)}
        speeds = {"matmul_flops_per_second": 2 * 1024**3 / median(product, 5),
                  "upload_bytes_per_second": data.nbytes / median(lambda: from_numpy(data).sum().item(), 3),
                  "download_bytes_per_second": data.nbytes / median(lambda: (held + 1).numpy(), 3)}
    if args.json:
        print(json.dumps({**seconds, **speeds}))
        return 0
    matmul, upload, download = speeds.values()
    _table([("small op, issued and run", f"{seconds['small_op_seconds'] * 1e6:.1f} us"),
            ("one value read", f"{seconds['read_seconds'] * 1e6:.1f} us"),
            ("matmul of 1024 x 1024", f"{matmul / 1e9:.1f} GFLOP/s"),
            ("upload", f"{upload / 1e6:.0f} MB/s"), ("download", f"{download / 1e6:.0f} MB/s")])
    return 0


def number(least: float, most: float, kind: type = int) -> Callable[[str], Any]:
    """The type argument of argparse for a number of this kind and range."""
    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if least <= (value := kind(text)) <= most:
                return value
        what = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"expected a {what} from {least} to {most}, not {text!r}")
    return read


_session_number = number(1, 2**63 - 1)


def _session_word(text: str) -> int | str:
    """A session's number or name."""
    if not text.lstrip("+-").isdecimal():
        return text
    found: int = _session_number(text)
    return found


def add_commands(commands: Any) -> dict[str, Callable[[argparse.Namespace], int]]:
    """Adds the parsers of the commands; returns the functions that run them."""
    with_address(commands.add_parser("sessions", help="lists the daemon's sessions"), table=True)
    memory = with_address(commands.add_parser("memory", help="memory of sessions, by device"), table=True)
    memory.add_argument("--session", type=_session_word, metavar="SESSION",
                        help="the largest tensors of the session with this number or name")
    memory.add_argument("--published", action="store_true",
                        help="with --json: the tensors that are published to other sessions")
    top = with_address(commands.add_parser("top", help="shows periodically which sessions use the lanes"))
    top.add_argument("--interval", type=number(0, 3600, float), default=2.0,
                     help="seconds between tables [2]")
    top.add_argument("--count", type=number(1, _MOST), default=-1, help="number of tables [no limit]")
    slow = with_address(commands.add_parser(
        "slowlog", help="lists instructions that held a lane for a long time"), table=True)
    slow.add_argument("--most", type=number(1, _MOST), default=20, help="maximum number of entries [20]")
    with_address(commands.add_parser("groups", help="lists the groups of collectives"), table=True)
    kill = with_address(commands.add_parser("kill", help="ends a session"))
    kill.add_argument("session", type=_session_word, help="its number or name, from `teletensor sessions`")
    kill.add_argument("--reason", default="", help="the reason that its client is told")
    kill.add_argument("--interrupt", action="store_true", help="only drop its queued commands")
    snapshot = with_address(commands.add_parser(
        "snapshot", help="saves sessions in the state directory: those named, or all that you may see"),
        table=True)
    snapshot.add_argument("session", type=_session_word, nargs="*",
                          help="numbers or names, from `teletensor sessions`")
    drain = with_address(commands.add_parser(
        "drain", help="ends the daemon as SIGTERM does, and reports what happened to its sessions"),
        table=True)
    drain.add_argument("--to", metavar="PEER", help="move all sessions to this peer instead of ending the "
                       "daemon; no new sessions are opened from then on")
    drain.add_argument("--cancel", action="store_true",
                       help="cancel a drain with --to: new sessions are opened again")
    drain.add_argument("--seconds", type=number(0, 1e6, float), default=0.0,
                       help="maximum duration of the drain [the daemon's --drain]")
    move = with_address(commands.add_parser(
        "move", help="moves a session to another daemon, where its program continues"), table=True)
    move.add_argument("session", type=_session_word, help="its number or name, from `teletensor sessions`")
    move.add_argument("--to", metavar="PEER", required=True, help="name of a peer of the daemon (--peers)")
    for each in (move, drain):
        each.add_argument("--timeout", type=number(0, 1e6, float), default=30.0, metavar="SECONDS",
                          help="maximum wait of a move for a connection to PEER [30]")
    tokens = commands.add_parser("token", help="manages tokens: create, list, revoke")
    actions = tokens.add_subparsers(dest="action", required=True)
    create = with_address(actions.add_parser("create", help="prints a new token"))
    create.add_argument("user", help="letters, digits and ._@-")
    create.add_argument("--output", metavar="FILE",
                        help="write it to this new file, which only its owner can read")
    create.add_argument("--role", choices=["user", "admin", "metrics"], default="user")
    create.add_argument("--days", type=number(1, 36500), default=0,
                        help="days until it expires [never]")
    with_address(actions.add_parser("list", help="lists tokens without their secrets"), table=True)
    revoke = with_address(actions.add_parser("revoke", help="revokes a token: calls with it are refused"))
    revoke.add_argument("id")
    with_address(commands.add_parser("bench", help="measures the daemon from this machine"),
                 table=True)
    return {"sessions": _sessions, "memory": _memory, "top": _top, "slowlog": _slow_log, "groups": _groups,
            "kill": _kill, "snapshot": _snapshot, "move": _move, "drain": _drain,
             "bench": _bench, "token": _token}
