"""The daemon with the device for one section of the check, which is replaced if the device is lost."""

from support.daemon import Daemon


class Box:
    """A daemon with the device. `session` is its current session in this thread; `log` is the output of all
    its processes."""

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
        """Starts another daemon if the device or the session of the present one is lost."""
        self.stop()
        self.start()


def is_loss(error):
    """Returns whether the error means that the device or the session is lost."""
    import teletensor as tt

    return isinstance(error, (tt.DeviceLostError, tt.SessionLostError))
