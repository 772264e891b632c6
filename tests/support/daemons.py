"""Starts several daemons that are connected to each other."""

import string


def peer_flags(name, peers, *flags):
    """The flags of a daemon with this name whose peers are "NAME=HOST:PORT,..."."""
    return ("--peer-name", name, "--peer-listen", "127.0.0.1:0", "--peers", peers, *map(str, flags))


def start_daemons(start, count, *flags, through=None, own=None):
    """Starts the daemons a, b, ... as peers of each other. start(*flags) starts one
    (tests/support/daemon.py). `through` converts a daemon's address to the one that its peers are given,
    such as that of a proxy. own(name) returns further flags of one daemon."""
    names = string.ascii_lowercase[:count]
    # of two daemons, the one with the smaller name connects to the other
    addresses, daemons = dict.fromkeys(names, "127.0.0.1:0"), []
    for name in reversed(names):
        peers = ",".join(f"{each}={address}" for each, address in addresses.items())
        daemon = start(*peer_flags(name, peers, *flags, *(own(name) if own else ())))
        addresses[name] = through(daemon.peers) if through else daemon.peers
        daemons.insert(0, daemon)
    return daemons


def keep_address(daemon):
    """Makes later processes of the daemon listen for peers at the address that it has now."""
    flags = list(daemon.flags)
    flags[flags.index("--peer-listen") + 1] = daemon.peers
    daemon.flags = tuple(flags)
