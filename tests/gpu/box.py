"""A daemon with the device for one section of the check, and another one once the device is lost."""

from support.daemon import Daemon


class Box:
    """`session`: with the daemon, current in this thread. `log`: what all its daemons wrote."""

    def __init__(self, flags, environment):
        self.flags, self.environment, self.log = flags, environment, ""

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        import teletensor as tt

        self.daemon = Daemon(*self.flags, env=self.environment)
        self.session = tt.connect(self.daemon.unix)
        self.session.__enter__()

    def stop(self):
        self.session.__exit__(None, None, None)
        self.daemon.stop()
        self.log += self.daemon.log

    def renew(self):
        """Another daemon, where the device or the session of this one is lost."""
        self.stop()
        self.start()


def is_loss(error):
    """Does nothing that this daemon's sessions hold work any more?"""
    import teletensor as tt

    return isinstance(error, (tt.DeviceLostError, tt.SessionLostError))
