"""A script that executes a command in a process that ends with its parent.

    python -I -S bound_child.py PARENT SIGNAL BLOCKED COMMAND [ARGUMENT...]

The kernel sends the process the signal SIGNAL when the parent, whose process id is PARENT, ends for any
reason. BLOCKED is the signal mask of the command: numbers with commas between them, or an empty string.

A preexec_fn of subprocess.Popen could do the same in the child. In a program that uses grpcio it would also
run gRPC's handlers of fork there, which start threads; 1 to 5 % of such children abort or hang before exec.
"""

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
_NOT_EXECUTED = 127  # the status of a shell whose command was not found


def main(parent: str, number: str, blocked: str, *command: str) -> None:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0) != 0 or os.getppid() != int(parent):
        sys.exit(_NOT_EXECUTED)
    signal.pthread_sigmask(signal.SIG_SETMASK, [int(each) for each in blocked.split(",") if each])
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
