"""Runs `lockstep judge` and returns what it said."""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.errors import LockstepError, check


@dataclasses.dataclass(frozen=True)
class Finding:
    """A node that is wrong: where, by how much, and what its wrong elements have in common."""

    point: str
    layer: int | None        # None: not of a layer
    request: int
    position: int
    number: int              # of its pass
    verdict: str             # introduced, nonfinite, structural
    statistic: str           # T1, T2, ...
    value: float | None
    limit: float | None
    index: tuple[int, ...]   # of the worst element
    want: float | None
    got: float | None
    rule: str
    looks_like: tuple[str, ...] = ()  # what computes what it has, at its point: the best first

    @property
    def place(self) -> str:
        return self.point if self.layer is None else f"layer {self.layer} {self.point}"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the judge said of a trace. It is true where the verdict is clean."""

    verdict: str             # clean, diverged or inconclusive
    story: str               # one sentence
    expected: int            # nodes
    judged: int
    first: Finding | None    # the first op that introduced an error
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    blind: tuple[str, ...]   # what this run could not have shown
    status: int              # exit status: 0 clean, 1 diverged, 2 inconclusive
    result: Mapping[str, Any] = dataclasses.field(repr=False)  # all of the JSON result

    def __bool__(self) -> bool:
        return self.verdict == "clean"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.story}"


def judge(path: str | os.PathLike[str], model: str | os.PathLike[str], *options: str,
          command: str | os.PathLike[str] = "") -> Verdict:
    """The verdict of `lockstep judge PATH --model MODEL OPTIONS...`.

    command: the lockstep binary; else $LOCKSTEP, `lockstep` of the PATH, or the build of this
    checkout. Raises LockstepError, with the command's sentence, where it had none but trouble.
    """
    binary = str(command or find_command())
    try:
        made = subprocess.run([binary, "judge", os.fspath(path), "--model", os.fspath(model),
                               "--format", "json", *options], capture_output=True, text=True,
                              check=False)
    except OSError as error:
        raise LockstepError(f"{binary} cannot be run ({error}): name the lockstep command in "
                            "LOCKSTEP") from error
    try:
        result = json.loads(made.stdout)
    except ValueError as error:
        said = made.stderr.strip().removeprefix("error: ") or \
            f"{binary} ended with {made.returncode} and said nothing"
        raise LockstepError(said) from error
    return _verdict_of(result, made.returncode)


def find_command() -> str:
    """Where the lockstep binary is. Raises LockstepError where it is nowhere."""
    named = os.environ.get("LOCKSTEP")
    if named:
        check(pathlib.Path(named).is_file(), f"LOCKSTEP says {named}, where no file is")
        return named
    for candidate in _candidates():
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise LockstepError("the lockstep command was not found: build it (tools/setup), and put it "
                        "into the PATH or its path into LOCKSTEP")


def _candidates() -> Iterator[str | None]:
    yield shutil.which("lockstep")
    for folder in pathlib.Path(__file__).resolve().parents[3:4]:
        yield str(folder / "build" / "lockstep")


Causes = Mapping[tuple[str, Any], tuple[str, ...]]  # by point and layer


def _causes_of(result: Mapping[str, Any]) -> Causes:
    return {(point["point"], point["layer"]): tuple(cause["says"] for cause in point["looks_like"])
            for point in result.get("points", ()) if point.get("looks_like")}


def _finding_of(found: Mapping[str, Any], causes: Causes) -> Finding:
    return Finding(found["point"], found["layer"], found["request"], found["position"],
                   found["pass"], found["verdict"], found["statistic"],
                   _number(found["value"]), _number(found["limit"]), tuple(found["index"]),
                   _number(found["want"]), _number(found["got"]), found["rule"],
                   causes.get((found["point"], found["layer"]), ()))


def _number(value: float | str | None) -> float | None:
    """JSON has no infinity: it is one of the texts that float() knows."""
    return None if value is None else float(value)


def _verdict_of(result: Mapping[str, Any], status: int) -> Verdict:
    first, causes = result["first"], _causes_of(result)
    return Verdict(result["verdict"], result["story"], result["nodes"]["expected"],
                   result["nodes"]["judged"], first and _finding_of(first, causes),
                   tuple(_finding_of(found, causes) for found in result["findings"]),
                   tuple(result["notes"]), tuple(result["blind"]), status, result)
