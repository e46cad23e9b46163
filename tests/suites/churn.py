"""Small changes in a collection without end, so that its log is written anew again and again.

    churn.py FOLDER LOG READY

FOLDER is a directory of the collection in the mount, LOG its meta.log in the store. READY is a file that it makes once
the log was written anew for the first time. SIGTERM ends it: it then prints how often that was, and fails if it was never.
"""
import os
import signal
import struct
import sys

folder, log, ready = sys.argv[1:]
ended = False


def end(*_):
    global ended
    ended = True


def generation():
    with open(log, "rb") as file:
        return struct.unpack_from("<Q", file.read(128), 43)[0]


signal.signal(signal.SIGTERM, end)
first = generation()
path = os.path.join(folder, "churned")
with open(path, "w") as file:
    file.write("something")
step = 0
while not ended:
    step += 1
    os.chmod(path, 0o600 + step % 8)
    if step % 500 == 0:
        # A sync checks the size of the log.
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        if generation() > first and not os.path.exists(ready):
            open(ready, "w").close()
times = generation() - first
print(f"the log was written anew {times} times by {step} changes", flush=True)
sys.exit(0 if times > 0 else 1)
