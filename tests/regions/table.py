"""Judges right and wrong runs with points left out of their traces, and prints how well that went.

python table.py --lockstep BIN [--models DIR ...] [--dtypes bf16,fp32] [--attention sdpa]
    [--selections all,half,...] [--only GLOB,...] [--kinds bug,right] [--json FILE]

A bug is `right` where the first finding is the first recorded place whose region holds it, `later`
where it is another of these, WRONG where it is none of them.
"""
from __future__ import annotations

import argparse
import collections
import dataclasses
import fnmatch
import json
import pathlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator

import torch

import engine
import unrounded
from bug import Bug
from bugs import BUGS
from cases import Setting
from outcomes import (ALARM, CLEAN, LATER, MISSED, NO_EFFECT, REGION, RIGHT, UNSURE, WRONG, Outcome,
                      outcomes_of)
from selections import SELECTIONS
from variant import Variant
from variants import VARIANTS

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"


def chosen(name: str, options: argparse.Namespace) -> bool:
    return any(fnmatch.fnmatch(name, glob) for glob in options.only.split(","))


def cases_of(setting: Setting, options: argparse.Namespace) -> list[Bug | Variant]:
    """What can be run there; variants that leave out points themselves are of other tests."""
    model = setting.model()
    found: list[Bug | Variant] = []
    if "bug" in options.kinds:
        found += [bug for bug in BUGS.values() if bug.possible(model, setting.dtype)
                  and (setting.attention == "sdpa" or bug.point in ("attn.out", "attn.kv"))]
    if "right" in options.kinds:
        found += [variant for variant in (VARIANTS | unrounded.VARIANTS).values()
                  if not variant.lacks and variant.possible(model, setting.dtype)]
    return [case for case in found if chosen(case.name, options)]


def outcomes_of_engine(options: argparse.Namespace, folder: pathlib.Path, setting: Setting,
                       ) -> Iterator[Outcome]:
    """Seeded faults, and schedules that are none."""
    given = (options.lockstep, folder / "case.h5", setting)
    selections = options.selections.split(",")
    for name in engine.faults(options.lockstep) if "bug" in options.kinds else ():
        if chosen(name, options):
            yield from engine.outcomes_of_fault(*given, name, 2, selections)
    for name in engine.SCHEDULES if "right" in options.kinds else ():
        if chosen(name, options):
            yield from engine.outcomes_of_schedule(*given, name, selections)


def all_outcomes(options: argparse.Namespace, folder: pathlib.Path) -> Iterator[Outcome]:
    ways = tuple(way == "declared" for way in options.ways.split(","))
    for model in options.models:
        for dtype in options.dtypes.split(","):
            for attention in options.attention.split(","):
                setting = Setting(model, dtype, attention, options.count, options.steps)
                if attention == "engine":
                    yield from outcomes_of_engine(options, folder, setting)
                    continue
                for case in cases_of(setting, options):
                    yield from outcomes_of(options.lockstep, folder / "case.h5", setting, case,
                                           options.selections.split(","), ways)


def heading(outcome: Outcome) -> tuple[str, ...]:
    return (outcome.model, outcome.dtype, outcome.attention,
            "declared" if outcome.declared else "undeclared", outcome.selection)


def print_table(title: str, columns: tuple[str, ...], outcomes: list[Outcome]) -> None:
    counts: dict[tuple, collections.Counter] = collections.defaultdict(collections.Counter)
    for outcome in outcomes:
        counts[heading(outcome)][outcome.outcome] += 1
    if not counts:
        return
    print(f"\n{title:48s}" + "".join(f"{column:>14s}" for column in columns))
    for key, count in sorted(counts.items(), key=lambda item: (item[0][:4],
                                                               list(SELECTIONS).index(item[0][4]))):
        rest = sum(count.values()) - sum(count[column] for column in columns)
        print(f"{' '.join(key):48s}" + "".join(f"{count[column]:14d}" for column in columns)
              + (f"  and {rest} else" if rest else ""))


def width_of(outcome: Outcome) -> float | None:
    """How many times its own op's budget the first finding's region has, as the judge says."""
    if not outcome.verdict.region:
        return None
    _, point = outcome.verdict.place
    for note in outcome.verdict.notes:
        said = re.match(re.escape(point) + r" is judged together with .* up to (\S+) times", note)
        if said:
            return float(said[1])
    return None


def print_widths(outcomes: list[Outcome]) -> None:
    """Of findings at regions: how many hidden ops these have, and how wide their budgets are."""
    found = collections.defaultdict(list)
    for outcome in outcomes:
        if outcome.outcome in (RIGHT, LATER) and outcome.verdict.region:
            found[heading(outcome)].append((len(outcome.verdict.region), width_of(outcome)))
    if not found:
        return
    print(f"\n{'regions that are named':48s}{'findings':>14s}{'hidden ops':>14s}{'most':>14s}"
          f"{'times as wide':>14s}{'most':>14s}")
    for key, sizes in sorted(found.items()):
        ops = [count for count, _ in sizes]
        widths = [width for _, width in sizes if width is not None]
        print(f"{' '.join(key):48s}{len(sizes):14d}{statistics.median(ops):14.3g}{max(ops):14d}"
              + (f"{statistics.median(widths):14.3g}{max(widths):14.3g}" if widths else ""))


def print_names(outcomes: list[Outcome], dull: set[str]) -> None:
    """The cases that did not go as they should."""
    groups: dict[tuple, list[Outcome]] = collections.defaultdict(list)
    for outcome in outcomes:
        if outcome.outcome not in dull:
            groups[outcome.outcome, heading(outcome)].append(outcome)
    for (kind, key), members in sorted(groups.items()):
        print(f"\n{kind}: {' '.join(key)}")
        for o in members:
            size = "" if o.shown is None else (
                f"; {o.shown.max_ulp:.3g} ulp, {o.shown.relative_rms:.2g} of the rms, "
                f"{100 * o.shown.share:.2g} %")
            print(f"  {o.case} ({o.expected}{size})")
            if kind not in (MISSED, NO_EFFECT):
                print(f"      {o.verdict.story[:300]}")


def print_all(outcomes: list[Outcome]) -> None:
    bugs = [o for o in outcomes if o.kind == "bug"]
    rights = [o for o in outcomes if o.kind == "right"]
    print_table("bugs", (RIGHT, LATER, MISSED, UNSURE, NO_EFFECT, WRONG, REGION), bugs)
    print_table("right runs", (CLEAN, ALARM, UNSURE), rights)
    print_widths(bugs)
    print_names(bugs, {RIGHT, LATER, NO_EFFECT})
    print_names(rights, {CLEAN})


def json_of(outcome: Outcome) -> dict:
    made = dataclasses.asdict(outcome)
    made["verdict"]["region"] = sorted(outcome.verdict.region)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--lockstep", required=True, help="the program that judges")
    parser.add_argument("--models", nargs="+", help="checkpoint folders",
                        default=[str(DATA / "bard-qwen3"), str(DATA / "bard-qwen2.5")])
    parser.add_argument("--dtypes", default="bf16,fp32")
    parser.add_argument("--attention", default="sdpa",
                        help="sdpa, eager: of Hugging Face; engine: this engine")
    parser.add_argument("--selections", default=",".join(SELECTIONS))
    parser.add_argument("--ways", default="declared,undeclared", help="how contracts are given")
    parser.add_argument("--kinds", default="bug,right")
    parser.add_argument("--count", type=int, default=70, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=3, help="tokens that follow")
    parser.add_argument("--only", default="*", help="cases with such names")
    parser.add_argument("--json", type=pathlib.Path, help="write each outcome there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun, outcomes = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        for outcome in all_outcomes(options, pathlib.Path(folder)):
            outcomes.append(outcome)
            print(f"{' '.join(heading(outcome))} {outcome.case}: {outcome.outcome}",
                  file=sys.stderr, flush=True)
    print_all(outcomes)
    print(f"\n{len(outcomes)} verdicts in {time.monotonic() - begun:.0f} s")
    if options.json:
        options.json.write_text(json.dumps([json_of(o) for o in outcomes], indent=1))
    bad = {WRONG, REGION, ALARM, "trouble"}
    sys.exit(1 if any(outcome.outcome in bad for outcome in outcomes) else 0)


if __name__ == "__main__":
    main()
