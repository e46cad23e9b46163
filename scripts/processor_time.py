"""Runs a command and writes the processor time (user and system, in seconds) of all its descendants into a file.

    python3 scripts/processor_time.py FILE COMMAND...

Daemons count too, although their parents end first: this process adopts them. A daemon that runs on when the command
ends does not count. Exits as the command does.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36


def main(path: str, command: list[str]) -> int:
    # Where the call fails, daemons go to init and do not count.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: child.send_signal(received))
    status = None
    while status is None:
        ended, code = os.wait()
        if ended == child.pid:
            status = os.waitstatus_to_exitcode(code)
    child.returncode = status
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(path, "w") as file:
        print(round(used.ru_utime + used.ru_stime), file=file)
    return status if status >= 0 else 128 - status


sys.exit(main(sys.argv[1], sys.argv[2:]))
