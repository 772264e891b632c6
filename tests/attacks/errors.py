"""A flood of late errors: a thin client sends commands that fail, keeps their results, and raises no error.

    python -m attacks.errors ADDRESS        (in the folder tests)
"""

import sys

import grpc
from support.raw import Raw

EACH = 2048  # commands of a frame


class ErrorFlood:
    """Context manager with a session whose `flood` fails commands. `errors` counts the late errors that the
    daemon has reported, and `left_out` those among them without a text of their own."""

    def __init__(self, address):
        self._raw = Raw(address)
        self._session = self._raw.session(thin=True)
        self.sent = self.errors = self.left_out = 0
        self.codes = set()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._session.close()
        self._raw.close()

    def flood(self, commands):
        """Sends this many commands, as fast as the daemon grants credits."""
        s = self._session
        wrong = s.command(op=1, made=1)  # an operator without its argument
        first = self.sent
        while self.sent - first < commands:
            s.run(*[wrong] * EACH)
            self.sent += EACH
            completed = 0
            while completed < s.seq - 1:
                completed = self._read(s.progress())

    def flood_unread(self, commands):
        """Sends this many commands and reads nothing meanwhile."""
        s = self._session
        wrong = s.command(op=1, made=1)
        for _ in range(0, commands, EACH):
            s.run(*[wrong] * EACH)
            self.sent += EACH

    def read(self):
        """Reads until each command that was sent has been reported."""
        while self.errors < self.sent:
            self._read(self._session.progress())

    def _read(self, progress):
        """Counts the errors of a message; returns the number of the last command that has run."""
        self.errors += len(progress.errors)
        self.left_out += sum(error.text == "text left out" for error in progress.errors)
        self.codes |= {error.code for error in progress.errors}
        return progress.completed_upto


def main():
    with ErrorFlood(sys.argv[1]) as attack:
        try:
            while True:
                attack.flood(EACH * 10)
                print(f"{attack.errors} errors were not raised", flush=True)
        except grpc.RpcError as error:
            print(f"the session has ended: {error.code()}: {error.details()}")


if __name__ == "__main__":
    main()
