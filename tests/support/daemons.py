"""Several daemons that work together."""

import string


def peer_flags(name, peers, *flags):
    """Of a daemon of this name whose peers are "NAME=HOST:PORT,..."."""
    return ("--peer-name", name, "--peer-listen", "127.0.0.1:0", "--peers", peers, *map(str, flags))


def start_daemons(start, count, *flags, through=None, own=None):
    """Daemons a, b, ... that are each other's peers. start(*flags) starts one (tests/support/daemon.py). `through`:
    makes of a daemon's address the one that its peers are told, such as that of a proxy. own(name): further flags
    of one daemon."""
    names = string.ascii_lowercase[:count]
    addresses, daemons = dict.fromkeys(names, "127.0.0.1:0"), []  # of two daemons the smaller name calls
    for name in reversed(names):
        peers = ",".join(f"{each}={address}" for each, address in addresses.items())
        daemon = start(*peer_flags(name, peers, *flags, *(own(name) if own else ())))
        addresses[name] = through(daemon.peers) if through else daemon.peers
        daemons.insert(0, daemon)
    return daemons


def keep_address(daemon):
    """The later processes of the daemon listen for peers where this one does."""
    flags = list(daemon.flags)
    flags[flags.index("--peer-listen") + 1] = daemon.peers
    daemon.flags = tuple(flags)
