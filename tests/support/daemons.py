"""Several daemons that work together."""

import string


def start_daemons(start, count, *flags, through=None):
    """Daemons a, b, ... that are each other's peers. start(*flags) starts one (tests/support/daemon.py). `through`:
    makes of a daemon's address the one that its peers are told, such as that of a proxy."""
    names = string.ascii_lowercase[:count]
    addresses, daemons = dict.fromkeys(names, "127.0.0.1:0"), []  # of two daemons the smaller name calls
    for name in reversed(names):
        peers = ",".join(f"{each}={address}" for each, address in addresses.items())
        daemon = start("--peer-name", name, "--peer-listen", "127.0.0.1:0", "--peers", peers, *flags)
        addresses[name] = through(daemon.peers) if through else daemon.peers
        daemons.insert(0, daemon)
    return daemons
