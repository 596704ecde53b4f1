"""Edits saved traces and has each judged: wrong ones must not be clean, right ones must be.

python edits_test.py --lockstep BIN --data tests/data [--quick] [--only GLOB] [--json FILE]

Exit status 1 when something wrong came out clean, something right did not, a trace in which numbers
or tokens were changed is identical by `diff` to the one it was made of, or either crashed or ended
in trouble without one sentence that says why. Where a wrong trace ends otherwise or elsewhere than
expected, the table has a remark.
"""
from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from bases import BaseTraces
from edits import EDITS
from registry import CLEAN, DIVERGED, Edit, Place
from trace_model import DoesNotFit

SECONDS = 120  # that a judgement may take
# 12 GiB of address space that it may ask for; AddressSanitizer asks for terabytes.
LIMITED = [] if "ASAN_OPTIONS" in os.environ else ["prlimit", f"--as={12 << 30}"]
VERDICTS = {0: "clean", 1: "diverged", 2: "doubt"}
FAILURES = {"CLEAN": "clean though it must not be", "ALARM": "not clean though it must be",
            "CRASH": "crashed, or gave no single sentence",
            "SAME": "has other numbers or tokens, and is identical by diff",
            "UNFIT": "the edit did not fit"}


@dataclass
class Outcome:
    """What became of one edit."""

    edit: str
    base: str
    expected: str
    got: str
    expected_place: str
    place: str
    remark: str  # a key of FAILURES, a word on what is otherwise, or nothing
    story: str
    why: str
    diffed: str  # what diff calls it and the trace that it was made of
    seconds: float


@dataclass
class Judgement:
    status: int | None  # None: crash
    place: Place | None
    story: str


def judge(lockstep: Path, trace: Path, model: Path, result: Path) -> Judgement:
    command: list[str | Path] = [*LIMITED, lockstep, "judge", trace, "--model", model, "--json",
                                 result]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS,
                              check=False, errors="replace")
    except subprocess.TimeoutExpired:
        return Judgement(None, None, f"took over {SECONDS} s")
    said = done.stderr.strip()
    if result.exists() and done.returncode in VERDICTS:
        told = json.loads(result.read_text())
        first = told["first"]
        place = first and Place(first["pass"], -1 if first["layer"] is None else first["layer"],
                                first["point"])
        return Judgement(done.returncode, place, f"{told['verdict']}: {told['story']}")
    if done.returncode != 2 or not said or "\n" in said:
        return Judgement(None, None, f"status {done.returncode}: {said[-300:]!r}")
    return Judgement(2, None, said)


def compare(lockstep: Path, source: Path, target: Path, result: Path) -> str:
    """What diff calls the two: a verdict, trouble, or crash."""
    result.unlink(missing_ok=True)
    try:
        done = subprocess.run([*LIMITED, lockstep, "diff", source, target, "--json", result],
                              capture_output=True, text=True, timeout=SECONDS, check=False,
                              errors="replace")
    except subprocess.TimeoutExpired:
        return f"crash: over {SECONDS} s"
    if result.exists() and done.returncode in VERDICTS:
        return json.loads(result.read_text())["verdict"]
    said = done.stderr.strip()
    sound = done.returncode == 2 and said and "\n" not in said
    return "trouble" if sound else f"crash: status {done.returncode}: {said[-300:]!r}"


def remark_with(remark: str, edit: Edit, diffed: str) -> str:
    if diffed.startswith("crash"):
        return "CRASH"
    sound = remark not in FAILURES
    return "SAME" if sound and edit.other_by_diff and diffed == "identical" else remark


def remark_of(edit: Edit, wanted: Place | None, judged: Judgement) -> str:
    if judged.status is None:
        return "CRASH"
    if edit.expect is None:
        return ""
    if edit.expect == CLEAN:
        return "" if judged.status == CLEAN else "ALARM"
    if judged.status == CLEAN:
        return "CLEAN"
    if judged.status != edit.expect:
        return "other exit"
    elsewhere = judged.status == DIVERGED and wanted is not None and judged.place != wanted
    return "elsewhere" if elsewhere else ""


def tried(edit: Edit, bases: BaseTraces, folder: Path) -> Outcome:
    begin = time.monotonic()
    source = bases.path(edit.base)
    target = folder / f"{edit.base}-{edit.name}{source.suffix}"
    expected = "any" if edit.expect is None else VERDICTS[edit.expect]
    try:
        wanted = edit.write(source, target)
    except DoesNotFit as error:
        return Outcome(edit.name, edit.base, expected, "", "", "", "UNFIT", str(error), edit.why,
                       "", time.monotonic() - begin)
    judged = judge(bases.lockstep, target, bases.model(edit.base), target.with_suffix(".json"))
    diffed = compare(bases.lockstep, source, target, target.with_suffix(".json"))
    if target.is_file():
        target.unlink()
    got = "crash" if judged.status is None else VERDICTS[judged.status]
    story = judged.story + diffed if diffed.startswith("crash") else judged.story
    return Outcome(edit.name, edit.base, expected, got, str(wanted or ""), str(judged.place or ""),
                   remark_with(remark_of(edit, wanted, judged), edit, diffed), story,
                   edit.why, diffed,
                   time.monotonic() - begin)


def row_of(outcome: Outcome) -> str:
    where = outcome.place if outcome.remark != "elsewhere" else \
        f"{outcome.place} instead of {outcome.expected_place}"
    story = " ".join(outcome.story.split())[:150]
    return (f"{outcome.base:9} {outcome.edit:42} {outcome.expected:8} {outcome.got:8} "
            f"{outcome.diffed.split(':')[0]:10} {outcome.remark:10} {where:32} {story}")


def summary_of(outcomes: list[Outcome], seconds: float) -> str:
    lines = []
    for failure, text in FAILURES.items():
        found = [one for one in outcomes if one.remark == failure]
        if found:
            lines.append(f"\n{text} ({len(found)})")
            lines += [f"  {one.base}/{one.edit}: {one.why}\n      {one.story[:300]}"
                      for one in found]
    counted = Counter(one.expected for one in outcomes)
    remarks = Counter(one.remark or "as expected" for one in outcomes)
    compared = Counter(one.diffed.split(":")[0] for one in outcomes)
    lines.append(f"\ndiff with the trace that was edited: {dict(compared)}")
    lines.append(f"{len(outcomes)} edits in {seconds:.0f} s, expected: {dict(counted)}; "
                 f"outcome: {dict(remarks)}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lockstep", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="tests/data")
    parser.add_argument("--quick", action="store_true", help="some edits of each kind")
    parser.add_argument("--only", default="*", help="edits whose base/name is like this")
    parser.add_argument("--json", type=Path, help="write the table to this file too")
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args()


def every_third(edits: list[Edit]) -> list[Edit]:
    """Of each kind, base and expected verdict the first, the fourth and so on."""
    seen: Counter = Counter()
    kept = []
    for edit in edits:
        alike = edit.kind, edit.base, edit.expect
        seen[alike] += 1
        kept += [edit] if seen[alike] % 3 == 1 else []
    return kept


def main() -> int:
    given, begin = arguments(), time.monotonic()
    chosen = [edit for edit in EDITS if (edit.quick or not given.quick)
              and fnmatch.fnmatch(f"{edit.base}/{edit.name}", given.only)]
    if given.quick and "LOCKSTEP_WHOLE" not in os.environ:
        chosen = every_third(chosen)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bases = BaseTraces(given.lockstep.resolve(), given.data.resolve(), folder, given.quick)
        for base in dict.fromkeys(edit.base for edit in chosen):
            bases.path(base)
        with ThreadPoolExecutor(given.jobs) as pool:
            outcomes = []
            for outcome in pool.map(lambda edit: tried(edit, bases, folder), chosen):
                outcomes.append(outcome)
                print(row_of(outcome), flush=True)
    print(summary_of(outcomes, time.monotonic() - begin))
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    return int(any(one.remark in FAILURES for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
