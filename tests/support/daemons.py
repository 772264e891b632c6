"""Starts several daemons that are connected to each other."""

import socket
import string


def hold_port():
    """Returns a socket that is bound to a port. A daemon can listen at this port, and no other process is
    given it: with SO_REUSEADDR, Linux allows a second use of a port while none of the sockets listens."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def peer_flags(name, peers, *flags, port=0):
    """The flags of a daemon with this name whose peers are "NAME=HOST:PORT,..."."""
    return ("--peer-name", name, "--peer-listen", f"127.0.0.1:{port}", "--peers", peers, *map(str, flags))


def start_daemons(start, count, *flags, through=None, own=None):
    """Starts the daemons a, b, ... as peers of each other, which keep their addresses for peers when they are
    restarted. start(*flags) starts one (tests/support/daemon.py). `through` converts a daemon's address to
    the one that its peers are given, such as that of a proxy. own(name) returns further flags of one
    daemon."""
    names = string.ascii_lowercase[:count]
    # of two daemons, the one with the smaller name connects to the other
    addresses, daemons = dict.fromkeys(names, "127.0.0.1:0"), []
    for name in reversed(names):
        peers = ",".join(f"{each}={address}" for each, address in addresses.items())
        held = hold_port()
        daemon = start(*peer_flags(name, peers, *flags, *(own(name) if own else ()), port=held.getsockname()[1]))
        daemon.held = held
        addresses[name] = through(daemon.peers) if through else daemon.peers
        daemons.insert(0, daemon)
    return daemons
