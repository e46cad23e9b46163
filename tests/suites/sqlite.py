"""SQLite in WAL mode on a mount: readers and a writer at once, and a daemon that is killed in the middle.

    sqlite.py TIERFS STORE MOUNTPOINT [ROUNDS]

Each transaction moves an amount from one account to another and notes that it did: the sum never changes, and the
number of notes is the number of commits. After a kill every transaction that was committed is there.
"""
import os
import sqlite3
import sys
import time
from multiprocessing import Event, Process, Value
from pathlib import Path

from support import Mount

ACCOUNTS = 200
SUM = ACCOUNTS * 1000
READERS = 4


def connect(path):
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    connection.execute("pragma synchronous=full")
    return connection


def check(connection, at_least=0):
    (verdict,) = connection.execute("pragma integrity_check").fetchone()
    assert verdict == "ok", verdict
    (total,) = connection.execute("select sum(amount) from accounts").fetchone()
    assert total == SUM, f"{total} instead of {SUM}"
    (notes,) = connection.execute("select count(*) from notes").fetchone()
    assert notes >= at_least, f"{notes} transactions are left of {at_least}"
    return notes


def make(path):
    connection = connect(path)
    (mode,) = connection.execute("pragma journal_mode=wal").fetchone()
    assert mode == "wal", f"the journal mode is {mode}"
    connection.execute("create table accounts(id integer primary key, amount integer)")
    connection.execute("create table notes(id integer primary key, source integer, target integer, filler blob)")
    connection.execute("begin")
    connection.executemany("insert into accounts values(?, 1000)", [(number,) for number in range(ACCOUNTS)])
    connection.execute("commit")
    connection.close()


def quiet(is_killed):
    """Hides the errors of a process whose daemon was killed."""
    if is_killed:
        sys.stderr = open(os.devnull, "w")


def write(path, committed, ending, is_killed):
    quiet(is_killed)
    connection = connect(path)
    step = 0
    while not ending.is_set():
        step += 1
        source, target = step * 7 % ACCOUNTS, step * 13 % ACCOUNTS
        connection.execute("begin immediate")
        connection.execute("update accounts set amount = amount - 1 where id = ?", (source,))
        connection.execute("update accounts set amount = amount + 1 where id = ?", (target,))
        row = (source, target, step % 3000)
        connection.execute("insert into notes(source, target, filler) values(?, ?, zeroblob(?))", row)
        connection.execute("commit")
        committed.value += 1
        if step % 300 == 0:
            connection.execute("pragma wal_checkpoint(truncate)")


def read(path, reads, ending, is_killed):
    quiet(is_killed)
    connection = connect(path)
    seen = 0
    while not ending.is_set():
        connection.execute("begin")
        (total,) = connection.execute("select sum(amount) from accounts").fetchone()
        (notes,) = connection.execute("select count(*) from notes").fetchone()
        connection.execute("commit")
        assert total == SUM, f"a reader sees a sum of {total}"
        assert notes >= seen, "a reader sees transactions go"
        seen = notes
        reads.value += 1


def round_of(mount, path, seconds, kill):
    if not path.exists():
        make(path)
    connection = connect(path)
    before = check(connection)
    connection.close()
    # Processes: using a mapping after the end of its daemon kills the process.
    ending, committed = Event(), Value("q", 0)
    reads = [Value("q", 0) for _ in range(READERS)]
    workers = [Process(target=write, args=(path, committed, ending, kill))]
    workers += [Process(target=read, args=(path, count, ending, kill)) for count in reads]
    for worker in workers:
        worker.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until or committed.value == 0 or not all(count.value for count in reads):
        assert time.monotonic() < until + 100, "nothing goes on"
        assert all(worker.exitcode is None for worker in workers), "a worker failed before anything was killed"
        time.sleep(0.05)
    durable = committed.value
    if kill:
        mount.daemon.kill()
    ending.set()
    for worker in workers:
        worker.join(100)
        assert worker.exitcode is not None, "a worker hangs"
        assert kill or worker.exitcode == 0, f"a worker ended with {worker.exitcode}"
    if kill:
        mount.crash()
    else:
        durable = committed.value
    connection = connect(path)
    notes = check(connection, before + durable)
    connection.close()
    seen = sum(count.value for count in reads)
    how = ", killed" if kill else ""
    print(f"sqlite: {durable} transactions, {seen} reads{how}; {notes} are there, none is torn", flush=True)


def main(program, store, mountpoint, rounds="4"):
    mount = Mount(program, store, mountpoint)
    try:
        folder = Path(mountpoint) / "suites" / "sqlite"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "accounts.db"
        for number in range(int(rounds)):
            round_of(mount, path, 5, kill=number % 2 == 1)
        mount.end()
    finally:
        mount.give_up()


main(*sys.argv[1:])
