"""The connection to a daemon: finding or starting it, credentials, calls, attaching again after a cut."""
