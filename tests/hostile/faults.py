"""Fails the calls of a command, kills it, takes memory, files and streams from it.

python faults.py --lockstep BIN --data tests/data --library LIBRARY [--whole] [--only CLASS,...]
                 [--jobs N]

A command in trouble ends with status 2 and one sentence, or does its work; what it says was written
reads, and nothing half stands under a final name. Without --whole some of each class are tried.
"""
from __future__ import annotations

import argparse
import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import work
from work import (CHECK, GENERATE, IMPORT, INSPECT, JOURNAL, JUDGE, RUN, SMALL, Ended, Place,
                  Work, call)

KINDS = ("CALL", "READ", "OPEN", "ALLOC")  # as the library counts them
# glibc makes a thread's own data when the thread first asks for it, and ends the process by itself
# where there is no memory for them: no program can have a say in that.
GLIBC_ENDS = "cannot allocate memory for thread-local data: ABORT"


@dataclass
class Tried:
    name: str
    trouble: str
    apart: str = ""  # what is counted apart from those that ended well: that it was not tried, ...


Trial = Callable[[], Tried]


class Faults:
    """Each class is a method that yields what is to be tried, side by side."""

    def __init__(self, place: Place, whole: bool, seed: int) -> None:
        self.place, self.whole, self.random = place, whole, random.Random(seed)
        self.numbers = itertools.count(1)

    def folder(self) -> Path:
        folder = self.place.folder / str(next(self.numbers))
        folder.mkdir()
        return folder

    def some(self, numbers: list[int], thin: int, whole: int = 1 << 30) -> list[int]:
        """All of them, or that many with the first and the last."""
        most = whole if self.whole else thin
        if len(numbers) <= most:
            return numbers
        return sorted({numbers[0], numbers[-1], *self.random.sample(numbers, most - 2)})

    def with_library(self, task: Work, env: dict[str, str], folder: Path) -> Ended:
        env = {"LD_PRELOAD": str(self.place.library), **env}
        if task is not IMPORT:
            env["TROUBLE_OF"] = str(self.place.lockstep)
        return call(task.command(self.place, folder), env)

    def counts(self, task: Work) -> list[int]:
        folder = self.folder()
        task.prepare(self.place, folder)
        ended = self.with_library(task, {"TROUBLE_COUNT": str(folder / "counts")}, folder)
        assert ended.status == 0, (task.name, ended)
        counts = [int(word) for word in (folder / "counts").read_text().split()]
        shutil.rmtree(folder)
        return counts

    def without_memory(self, n: int, stays: int, task: Work) -> Tried:
        """Where no memory is left to be cleared up with, a file of a name of its own may stay."""
        tried = self.one(f"allocation {n} fails{' and all after it' * stays}", task,
                         {"TROUBLE_ALLOC": str(n), "TROUBLE_STAYS": str(stays)})
        if tried.trouble.startswith("status 127: ") and GLIBC_ENDS in tried.trouble:
            return Tried(tried.name, "", "ended by glibc")
        part = stays and tried.trouble.startswith("left behind: ") and ".part'" in tried.trouble
        return Tried(tried.name, "") if part else tried

    def judged(self, name: str, task: Work, folder: Path, ended: Ended, accepted=(0,)) -> Tried:
        trouble = (work.trouble_of_ended(ended, accepted)
                   or task.trouble(self.place, folder, ended))
        shutil.rmtree(folder, ignore_errors=True)
        return Tried(f"{task.name}: {name}", trouble)

    def one(self, name: str, task: Work, env: dict[str, str]) -> Tried:
        folder = self.folder()
        task.prepare(self.place, folder)
        return self.judged(name, task, folder, self.with_library(task, env, folder))

    def kills(self) -> Iterator[Trial]:
        """-9, -TERM and -INT at random moments."""
        times = {**{task: (56, 2) for task in GENERATE}, **{task: (12, 0) for task in RUN},
                 CHECK: (12, 0), JOURNAL: (8, 0), IMPORT: (12, 0)}
        signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
        for task, (whole, thin) in times.items():
            count = whole if self.whole else thin
            if count == 0:
                continue
            seconds = self.seconds_of(task)
            for i in range(count):
                yield partial(self.killed, task, signals[i % 3],
                              self.random.uniform(0, 1.1 * seconds))

    def seconds_of(self, task: Work) -> float:
        folder = self.folder()
        task.prepare(self.place, folder)
        begin = time.monotonic()
        if task is JOURNAL:
            return 40
        ended = call(task.command(self.place, folder))
        assert ended.status == 0, (task.name, ended)
        shutil.rmtree(folder)
        return time.monotonic() - begin

    def killed(self, task: Work, by: signal.Signals, after: float) -> Tried:
        folder = self.folder()
        task.prepare(self.place, folder)
        process = subprocess.Popen(task.command(self.place, folder), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                   env={**os.environ, **work.PREPARED})
        timer = threading.Timer(after, lambda: process.send_signal(by))
        timer.start()
        _, err = process.communicate()
        timer.cancel()
        ended = Ended(process.returncode, "", err.decode(errors="replace"))
        accepted = (0, -by) if task is not IMPORT else (0, -by, 1, 130)
        return self.judged(f"{by.name} after {after:.3f} s", task, folder, ended, accepted)

    def writes(self) -> Iterator[Trial]:
        """Each call that writes fails: the disk is full from there on, or an error comes once."""
        for task in [*GENERATE, RUN[0], CHECK, IMPORT]:
            slow = task not in GENERATE
            if slow and not self.whole:
                continue
            numbers = list(range(1, self.counts(task)[0] + 1))
            most = 40 if slow else 1000
            for what, stays in ((errno.ENOSPC, 1), (errno.EIO, 0)):
                for n in self.some(numbers, 2, most if stays else most // 4):
                    yield partial(self.one, f"write {n} fails with {errno.errorcode[what]}", task,
                                  {"TROUBLE_CALL": str(n), "TROUBLE_ERRNO": str(what),
                                   "TROUBLE_STAYS": str(stays)})
            for n in self.some(numbers, 2, 20):
                yield partial(self.one, f"write {n} is interrupted", task,
                              {"TROUBLE_CALL": str(n), "TROUBLE_ERRNO": str(errno.EINTR)})

    def short(self) -> Iterator[Trial]:
        """Writes and reads take half of what they are given: nothing is lost by that."""
        for task in [*GENERATE, *([RUN[0], CHECK] if self.whole else [])]:
            yield partial(self.shortened, task)

    def shortened(self, task: Work) -> Tried:
        folder = self.folder()
        task.prepare(self.place, folder)
        ended = self.with_library(task, {"TROUBLE_SHORT": "1"}, folder)
        status = ended.status
        tried = self.judged("short writes", task, folder, ended)
        if status != 0:
            tried.trouble = tried.trouble or f"status {status}: {ended.err[:200]!r}"
        return tried

    def reads(self) -> Iterator[Trial]:
        for task in GENERATE[:1] if not self.whole else [*GENERATE[:1], CHECK]:
            counts = self.counts(task)
            for kind, what, most in ((1, errno.EIO, 60), (2, errno.EMFILE, 40)):
                for n in self.some(list(range(1, counts[kind] + 1)), 2, most):
                    yield partial(
                        self.one, f"{KINDS[kind]} {n} fails", task,
                        {f"TROUBLE_{KINDS[kind]}": str(n), "TROUBLE_ERRNO": str(what)})

    def each(self) -> Iterator[Trial]:
        """Each write, read and open of a command fails once, or is interrupted once."""
        if not self.whole:  # what HDF5 writes when a dataset is closed is there
            first = self.counts(GENERATE[0])[0] * 78 // 100
            for n in range(first, first + 24, 3):
                yield partial(self.one, f"CALL {n} fails with EIO", GENERATE[0],
                              {"TROUBLE_CALL": str(n), "TROUBLE_ERRNO": str(errno.EIO)})
            # And what h5py lets go of and says to nobody.
            n = self.counts(IMPORT)[0] // 4
            yield partial(self.one, f"CALL {n} fails with EIO", IMPORT,
                          {"TROUBLE_CALL": str(n), "TROUBLE_ERRNO": str(errno.EIO)})
        for task in (SMALL, JUDGE, INSPECT, CHECK) if self.whole else (INSPECT,):
            for kind, count in zip(KINDS[:3], self.counts(task)):
                for what in (errno.EIO, errno.EINTR):
                    for n in self.some(list(range(1, count + 1)), 2):
                        yield partial(
                            self.one, f"{kind} {n} fails with {errno.errorcode[what]}", task,
                            {f"TROUBLE_{kind}": str(n), "TROUBLE_ERRNO": str(what)})

    def allocations(self) -> Iterator[Trial]:
        """The n-th allocation fails, and then all or none of those after it.

        Without a trace of HDF5, whose library crashes where its own allocations fail."""
        for task in [GENERATE[2], CHECK] if self.whole else GENERATE[2:]:
            numbers = list(range(1, self.counts(task)[3] + 1))
            for stays in (0, 1):
                for n in self.some(numbers, 3, 150 if task in GENERATE else 30):
                    yield partial(self.without_memory, n, stays, task)

    def limits(self) -> Iterator[Trial]:
        """Limits of memory, files and their sizes."""
        tasks = [*GENERATE, RUN[0], CHECK] if self.whole else GENERATE[:1]
        memory = [1 << n for n in range(24, 34)] if self.whole else [1 << 27, 1 << 30]
        files = list(range(3, 24)) if self.whole else [4, 9]
        sizes = [0, 1, 511, 4096, 10_000, 30_000, 100_000] if self.whole else [0, 10_000]
        for task in tasks:
            for what, name, values in (("as", "memory", memory), ("nofile", "files", files),
                                       ("fsize", "size", sizes)):
                for value in values if self.whole else values[:2]:
                    yield partial(self.limited, task, what, name, value)

    def limited(self, task: Work, what: str, name: str, value: int) -> Tried:
        folder = self.folder()
        task.prepare(self.place, folder)
        ended = call(["prlimit", f"--{what}={value}", *task.command(self.place, folder)])
        loads = ended.status == 127 and "shared libraries" in ended.err  # the loader's own words
        return self.judged(f"{name} {value}", task, folder, ended, (0, 127) if loads else (0,))

    def streams(self) -> Iterator[Trial]:
        """stdin, stdout and stderr full, closed, or gone."""
        ways = ["</dev/null >/dev/full", ">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-",
                "2>/dev/full", "| true", "| head -c 1 >/dev/null"]
        commands = [["points"], ["model", self.place.model], ["--help"], ["man"],
                    *([["run", "-m", self.place.model, "--tokens", "1,2", "-n", "1"]]
                      if self.whole else [])]
        for way in ways:
            for task in [*GENERATE] if self.whole else GENERATE[:1]:
                yield partial(self.streamed, task, way)
            for command in commands if self.whole else commands[:1]:
                yield partial(self.printed, command, way)

    def streamed(self, task: Work, way: str) -> Tried:
        folder = self.folder()
        line = " ".join(task.command(self.place, folder))
        return self.judged(way, task, folder, self.shell(line, way), (0, 2, -13, 141))

    def printed(self, command: list[str], way: str) -> Tried:
        ended = self.shell(" ".join([str(self.place.lockstep), *command]), way)
        trouble = "" if ended.status in (0, 2, 141) else f"status {ended.status}"
        if "full" in way and ended.status == 0 and not way.startswith("2"):
            trouble = "what was printed is lost, and the command says that all is well"
        return Tried(f"{command[0]}: {way}", trouble)

    def shell(self, line: str, way: str) -> Ended:
        return call(["bash", "-c", f"set -o pipefail; {line} {way}"])

    def writers(self) -> Iterator[Trial]:
        """Several writers on one path, and a reader while it is written."""
        for task in GENERATE if self.whole else GENERATE[:1]:
            for _ in range(4 if self.whole else 1):
                yield partial(self.beside_each_other, task)

    def beside_each_other(self, task: Work) -> Tried:
        folder = self.folder()
        started = [subprocess.Popen(task.command(self.place, folder), stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE) for _ in range(3)]
        readers = []
        while any(one.poll() is None for one in started):
            for path in folder.iterdir():
                seen = work.inspect(self.place, path)
                if seen.status not in (0, 2):
                    readers.append(f"reader: status {seen.status} {seen.err[:200]!r}")
        ends = [Ended(one.wait(), "", one.stderr.read().decode()) for one in started]
        whole = [end for end in ends if end.status == 0]
        tried = self.judged("three writers", task, folder, whole[0] if whole else ends[0])
        for end in ends:
            tried.trouble = tried.trouble or work.trouble_of_ended(end)
        if len(whole) != 1:
            tried.trouble = tried.trouble or f"{len(whole)} of 3 wrote it"
        tried.trouble = tried.trouble or "".join(readers[:1])
        return tried

    def surroundings(self) -> Iterator[Trial]:
        """Clocks, folders and locales that are not as they should be."""
        ways = {"a clock that goes back": {"TROUBLE_CLOCK": "1"}, "no TMPDIR": {"TMPDIR": "/none"},
                "locale C": {"LC_ALL": "C", "LANG": "C"}, "width 20": {"COLUMNS": "20"},
                "no HOME": {"HOME": "/none"}, "TERM of nobody": {"TERM": "\x1b[31m"}}
        for task in [*GENERATE, *RUN, CHECK] if self.whole else GENERATE[:1]:
            for name, env in ways.items():
                yield partial(self.one, name, task, env)
        for task in GENERATE if self.whole else GENERATE[:1]:
            yield partial(self.read_only, task)

    def read_only(self, task: Work) -> Tried:
        """A folder that may not be written: to root all may be, so that a mount is made of it."""
        folder = self.folder()
        command = " ".join(task.command(self.place, folder))
        ended = call(["unshare", "-m", "bash", "-c",
                      f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} "
                      f"&& exec {command}"])
        if "unshare" in ended.err or "mount:" in ended.err:
            return Tried(f"{task.name}: read-only", "", "not tried: no mount")
        return self.judged("read-only", task, folder, ended, ())


CLASSES = ("kills", "writes", "short", "reads", "each", "allocations", "limits", "streams",
           "writers", "surroundings")


def in_order(trials: Iterator[Trial], jobs: int) -> Iterator[Tried]:
    """What comes of each, so many at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        under_way: deque[Future[Tried]] = deque()
        for trial in trials:
            under_way.append(pool.submit(trial))
            if len(under_way) > 4 * jobs:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def try_class(faults: Faults, kind: str, jobs: int) -> int:
    """Prints each that did not end well, and how many there were; returns the former."""
    begin, counts = time.monotonic(), Counter()
    for tried in in_order(getattr(faults, kind)(), jobs):
        counts["trouble" if tried.trouble else tried.apart or "ended well"] += 1
        if tried.trouble:
            print(f"{kind}: {tried.name}: {tried.trouble}", flush=True)
    apart = "".join(f"  {what} {count}" for what, count in sorted(counts.items())
                    if what not in ("trouble", "ended well"))
    print(f"{kind:14} tried {counts.total():5}  ended well {counts['ended well']:5}{apart}  "
          f"{time.monotonic() - begin:.1f} s", flush=True)
    return counts["trouble"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--lockstep", "--data", "--library"):
        parser.add_argument(option, type=Path, required=True)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--only", default=",".join(CLASSES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="that many at a time")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(given.data.resolve().parents[1] / "traces/python")
    with tempfile.TemporaryDirectory() as name:
        place = Place(given.lockstep.resolve(), given.data.resolve(), given.library.resolve(),
                      Path(name))
        faults = Faults(place, given.whole, given.seed)
        bad = sum(try_class(faults, kind, given.jobs) for kind in given.only.split(","))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
