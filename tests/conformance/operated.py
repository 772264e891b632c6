"""The operator of the daemons of a transcript: does what its steps `operator WORDS` say.

    start FLAGS       a daemon of its own, on whose disk faults can be made
    pair              two daemons, a and b, between which sessions can move; later steps are about a
    at NAME           later steps are about this daemon
    stop, again       SIGTERM, and waits until the process has ended; another process in its place
    detached          waits until no client is attached
    crash             kill -9, and another process in its place
    damage            changes a byte in the middle of each file of a session
    disk_full PART    writes to files with this part in their path fail
    disk_good         no fault of the disks any more; a move that was slow ends
    move SESSION      asks for a move to the other daemon, whose disk is slow: the session is at rest
    moving            the other daemon has the session's file, and the disk of the first one is slow
"""

import threading
from pathlib import Path

from support.daemon import Daemon, wait_until
from support.daemons import start_daemons
from support.faults import Disk
from support.moving import FLAGS, OTHER, admin, connected, sessions

SLOW = 2000  # milliseconds of a write to a slow disk: a session of some blocks is under way until disk_good


class Operator:
    """Daemons of one transcript. Called with the words of a step; returns the address for the next steps."""

    def __init__(self, folder):
        self.folder, self.daemons, self.disks, self.name = Path(folder), {}, {}, "a"
        self.moves = []

    def __call__(self, words):
        act, *rest = words
        getattr(self, f"do_{act}")(*rest)
        return self.daemon.unix

    @property
    def daemon(self):
        return self.daemons[self.name]

    @property
    def disk(self):
        return self.disks[self.name]

    def close(self):
        """Ends the daemons; returns what was wrong with how they ended, or ""."""
        for disk in self.disks.values():
            disk.good()
        for move in self.moves:
            move.join()
        return "".join(daemon.stop() for daemon in self.daemons.values() if daemon.alive())

    def start(self, name, *flags):
        folder = self.folder / name
        folder.mkdir()
        self.disks[name] = Disk(folder)
        self.daemons[name] = Daemon(*flags, env=self.disks[name].environment)
        return self.daemons[name]

    def do_start(self, *flags):
        self.start("a", *flags)

    def do_pair(self):
        start_daemons(lambda *flags: self.start(flags[flags.index("--peer-name") + 1], *flags), 2, *FLAGS,
                      own=lambda name: ("--move-from", OTHER[name]))
        wait_until(lambda: all(connected(self.daemons[name], OTHER[name]) for name in OTHER), what="a connection")

    def do_at(self, name):
        self.name = name

    def do_stop(self):
        self.daemon.drain()

    def do_again(self):
        self.daemon.restart()

    def do_crash(self):
        self.daemon.crash()

    def do_detached(self):
        wait_until(lambda: not any(each["attached"] for each in sessions(self.daemon)), what="detached")

    def do_damage(self):
        self.daemon.may_say = ("event=session_not_restored",)
        for path in self.daemon.state.glob("*.session"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)

    def do_disk_full(self, part):
        self.disk.full(part)

    def do_disk_good(self):
        for disk in self.disks.values():
            disk.good()
        while self.moves:
            self.moves.pop().join()

    def do_move(self, session):
        source = self.daemon
        self.disk.slow(".moved", SLOW)
        self.disks[OTHER[self.name]].slow(".arriving", SLOW)

        def move():
            with admin(source) as asked:
                asked.move(int(session), OTHER[self.name])

        self.moves.append(threading.Thread(target=move))
        self.moves[-1].start()
        self.await_file(".arriving")

    def do_moving(self):
        self.disks[OTHER[self.name]].good()
        self.await_file(".arrival")

    def await_file(self, suffix):
        """Waits until the target of a move has a file with this suffix."""
        folder = self.daemons[OTHER[self.name]].state
        wait_until(lambda: any(path.suffix == suffix for path in folder.iterdir()), what=f"a file {suffix}")
