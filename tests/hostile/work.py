"""The commands that faults are tried on, what each leaves behind, and whether that is sound."""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

SECONDS = 120  # that a command may take; a fault must not keep it for ever
# Words of libraries, which no sentence of this project has.
FOREIGN = ("json.exception", "std::", "basic_string", "vector::", "bad_alloc",
           "filesystem error", "terminate called", "Traceback")
PREPARED = {"OMP_WAIT_POLICY": "passive", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@dataclass
class Ended:
    """How a command ended: its status (below zero: by that signal), and what it said."""

    status: int | None  # None: it did not end
    out: str = ""
    err: str = ""


@dataclass
class Place:
    """Where everything is."""

    lockstep: Path
    data: Path
    library: Path
    folder: Path

    @property
    def model(self) -> str:
        return str(self.data / "tiny/qwen3-default")


@dataclass(eq=False)
class Work:
    """A command, and the trouble with what it leaves in its folder."""

    name: str
    arguments: Callable[[Place, Path], list[str]]
    trouble: Callable[[Place, Path, Ended], str]
    prepare: Callable[[Place, Path], None] = field(default=lambda place, folder: None)

    def command(self, place: Place, folder: Path) -> list[str]:
        return self.arguments(place, folder)


def call(command: list[str], env: dict[str, str] | None = None, **options) -> Ended:
    merged = {**os.environ, **PREPARED, **(env or {})}
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False,
                              env=merged, **{"stdin": subprocess.DEVNULL, **options})
    except subprocess.TimeoutExpired:
        return Ended(None)
    return Ended(done.returncode, done.stdout.decode(errors="replace"),
                 done.stderr.decode(errors="replace"))


def not_a_sentence(err: str) -> str:
    """What is wrong with what a command said in its trouble; nothing if it is one sentence."""
    # LibTorch has a line of its own where it may not open /proc/cpuinfo.
    lines = [line for line in err.splitlines()
             if not line.startswith(("warning: ", "Error in cpuinfo: "))]
    if len(lines) != 1 or not lines[0].startswith("error: "):
        return f"not one sentence: {err[:300]!r}"
    if any(word in err for word in FOREIGN):
        return f"words of a library: {err[:300]!r}"
    return "" if len(err) < 1100 and lines[0].isprintable() else f"no line: {err[:300]!r}"


def trouble_of_ended(ended: Ended, accepted=(0,)) -> str:
    """Status 2 with a sentence, or one of those that are accepted."""
    if ended.status is None:
        return "did not end"
    if ended.status in accepted:
        return ""
    if ended.status != 2:
        return f"status {ended.status}: {ended.err[-300:]!r}"
    return not_a_sentence(ended.err)


def inspect(place: Place, path: Path) -> Ended:
    return call([str(place.lockstep), "inspect", str(path)])


def trouble_of_trace(place: Place, path: Path, said_whole: bool) -> str:
    """A trace under its final name is whole; what is left of one can be looked at."""
    part = path.with_name(path.name + ".part")
    for there in (path, part):
        if not there.exists():
            continue
        seen = inspect(place, there)
        if seen.status not in (0, 2) or (seen.status == 2 and not seen.out
                                         and not_a_sentence(seen.err)):
            return f"inspect {there.name}: status {seen.status}, {seen.err[:200]!r}"
        if path.suffix == ".h5" and there == path and seen.status != 0:
            return f"half a file under its final name: {seen.err[:200]!r} {seen.out[:200]!r}"
    if said_whole and (not path.exists() or inspect(place, path).status != 0):
        return "the command said that all is well, and the trace is not"
    return ""


def trouble_of_folder(folder: Path, known: set[str]) -> str:
    """Nothing stands in the folder that no option named, but parts of traces."""
    others = {entry.name for entry in folder.iterdir()} - known
    others = {name for name in others if not name.endswith((".h5.part", ".trace"))}
    return f"left behind: {sorted(others)}" if others else ""


def trouble_of_json(path: Path, must_be: bool) -> str:
    if not path.exists():
        return f"{path.name} is missing, and the command said that all is well" if must_be else ""
    try:
        json.loads(path.read_text())
    except ValueError as error:
        return f"half a file under its final name: {path.name}: {error}"
    return ""


def _traced(command: str, suffix: str, *more: str) -> Work:
    def arguments(place: Place, folder: Path) -> list[str]:
        given = [str(place.lockstep), command, "-m", place.model, "--tokens", "1,2,3",
                 "--tokens", "5,6", "-n", "2", "--trace", str(folder / f"x{suffix}"), *more]
        if command == "run":
            return [*given, "--json", str(folder / "r.json"), "--html", str(folder / "r.html")]
        return [*given, "--format", "json"]

    def trouble(place: Place, folder: Path, ended: Ended) -> str:
        whole = ended.status == 0
        return (trouble_of_trace(place, folder / f"x{suffix}", whole)
                or trouble_of_json(folder / "r.json", whole and command == "run")
                or (ended.status is not None and ended.status >= 0 and
                    trouble_of_folder(folder, {f"x{suffix}", "r.json", "r.html", "counts"})) or "")
    return Work(f"{command} {suffix}", arguments, trouble)


OLD = "old baseline"


def _check() -> Work:
    """The old baseline stands until the new one is whole."""
    def prepare(place: Place, folder: Path) -> None:
        made = call([str(place.lockstep), "check", "-m", place.model, "--tokens", "1,2,3", "-n",
                     "3", "--baseline", str(folder / "b.json"), "--update"])
        assert made.status == 0, made
        (folder / "b.json").rename(folder / "old.json")

    def arguments(place: Place, folder: Path) -> list[str]:
        (folder / "b.json").write_bytes((folder / "old.json").read_bytes())
        return [str(place.lockstep), "check", "-m", place.model, "--tokens", "1,2,3", "-n", "3",
                "--baseline", str(folder / "b.json"), "--update"]

    def trouble(place: Place, folder: Path, ended: Ended) -> str:
        del place
        left = ended.status is not None and ended.status >= 0 and \
            trouble_of_folder(folder, {"b.json", "old.json", "counts"})
        return trouble_of_json(folder / "b.json", True) or left or ""
    return Work("check --update", arguments, trouble, prepare)


def _reading(name: str, *more: str) -> Work:
    """A command that reads a trace, and may keep its result in it."""
    def prepare(place: Place, folder: Path) -> None:
        kept = place.folder / "kept.h5"
        if not kept.exists():
            made = call([str(place.lockstep), "generate", "-m", place.model, "--tokens", "1,2,3",
                         "-n", "2", "--keep", "full", "--trace", str(kept), "--format", "json"])
            assert made.status == 0, made
        shutil.copy(kept, folder / "x.h5")

    def arguments(place: Place, folder: Path) -> list[str]:
        given = [word.format(model=place.model, folder=folder) for word in more]
        return [str(place.lockstep), name, str(folder / "x.h5"), *given]

    def trouble(place: Place, folder: Path, ended: Ended) -> str:
        whole = ended.status == 0
        return (trouble_of_trace(place, folder / "x.h5", True)
                or trouble_of_json(folder / "r.json", whole and name == "judge")
                or trouble_of_folder(folder, {"x.h5", "r.json", "counts"})
                or ("the verdict is another one" if whole and name == "judge"
                    and "clean: " not in ended.out else ""))
    return Work(name, arguments, trouble, prepare)


def _journal() -> Work:
    """A journal that was cut is gone on with."""
    def arguments(place: Place, folder: Path) -> list[str]:
        return [str(place.lockstep), "selftest", "-m", place.model, "--quick", "--dtype", "fp32",
                "--journal", str(folder / "j.jsonl")]

    def trouble(place: Place, folder: Path, ended: Ended) -> str:
        del place, ended
        journal = folder / "j.jsonl"
        if not journal.exists():
            return ""
        lines = journal.read_text().split("\n")[:-1]  # the last may be cut
        for number, line in enumerate(lines):
            try:
                json.loads(line)
            except ValueError:
                return f"line {number + 1} of the journal is no JSON"
        return ""
    return Work("selftest --journal", arguments, trouble)


def _import() -> Work:
    def prepare(place: Place, folder: Path) -> None:
        import numpy as np
        rng = np.random.default_rng(1)
        tensors = {f"layer0.{name}": rng.standard_normal((3, 64)).astype(np.float32)
                   for name in ("attn.norm", "mlp.norm")}
        np.savez(folder / "pass_0.npz", **tensors)
        del place

    def arguments(place: Place, folder: Path) -> list[str]:
        return [sys.executable, "-B", "-m", "lockstep", "import", str(folder / "pass_0.npz"),
                str(folder / "x.h5"), "--map", "points", "--model", place.model, "--tokens",
                "1,2,3"]

    def trouble(place: Place, folder: Path, ended: Ended) -> str:
        return trouble_of_trace(place, folder / "x.h5", ended.status == 0)
    return Work("import", arguments, trouble, prepare)


GENERATE = [_traced("generate", ".h5", "--keep", "full"),
            _traced("generate", ".trace", "--keep", "full"), _traced("generate", ".journal")]
RUN = [_traced("run", ".h5", "--keep", "full"), _traced("run", ".trace")]
CHECK, JOURNAL, IMPORT = _check(), _journal(), _import()
JUDGE = _reading("judge", "--model", "{model}", "--json", "{folder}/r.json")
INSPECT = _reading("inspect")
SMALL = _traced("run", ".h5", "--points", "logits")
NUMBER = re.compile(r"\d+")
