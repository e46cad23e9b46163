"""A store that is mounted, killed and mounted again, for the suites in Python."""
import os
import signal
import subprocess
import time
from pathlib import Path


class Mount:
    """A daemon in the foreground, as a child: it can be killed, and its files be counted."""

    def __init__(self, program, store, mountpoint):
        self.program, self.store, self.mountpoint = program, store, Path(mountpoint)
        self.start()

    def start(self):
        self.daemon = subprocess.Popen(
            [self.program, "mount", "-f", "--create", self.store, self.mountpoint], stdin=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while not os.path.ismount(self.mountpoint):
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the daemon did not mount")
            time.sleep(0.01)

    def crash(self):
        """Kill -9, take the dead mount away, mount again."""
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()
        subprocess.run(["umount", "-l", self.mountpoint], check=True)
        self.start()

    def end(self):
        """Unmounts; the daemon ends well and the store is whole."""
        subprocess.run([self.program, "umount", self.mountpoint], check=True, timeout=60)
        code = self.daemon.wait(60)
        if code != 0:
            raise SystemExit(f"the daemon ended with {code}")
        subprocess.run([self.program, "fsck", self.store], check=True, timeout=120)

    def give_up(self):
        self.daemon.kill()
        subprocess.run(["umount", "-l", self.mountpoint], stderr=subprocess.DEVNULL)
