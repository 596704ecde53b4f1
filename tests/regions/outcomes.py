"""One run of one case, judged with some of its points left out, and how well that went."""
from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
from collections.abc import Iterator

import cases
import trace_file
from bug import Bug
from cases import Setting, Shown
from selections import SELECTIONS, Regions, Suspects, suspects
from trace_file import Place
from unrounded import Unrounded
from variant import Variant

RIGHT, LATER, WRONG, MISSED, UNSURE, NO_EFFECT, ALARM, CLEAN, REGION = (
    "right", "later", "WRONG", "missed", "inconclusive", "no effect", "ALARM", "clean",
    "OTHER REGION")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the judge said of a trace."""

    verdict: str
    story: str
    place: Place | None = None
    number: int = -1                      # the pass of the first finding
    region: frozenset[Place] = frozenset()
    budgets: float = 0
    notes: tuple[str, ...] = ()


def judge(binary: str, trace: pathlib.Path, folder: str) -> Verdict:
    made = subprocess.run([binary, "judge", str(trace), "--model", folder, "--format", "json"],
                          capture_output=True, text=True, check=False)
    try:
        result = json.loads(made.stdout)
    except json.JSONDecodeError:
        return Verdict("trouble", made.stderr.strip())
    notes = tuple(result["notes"])
    first = result["first"]
    if first is None:
        return Verdict(result["verdict"], result["story"], notes=notes)

    def place_of(node: dict) -> Place:
        return (-1 if node["layer"] is None else node["layer"]), node["point"]
    return Verdict(result["verdict"], result["story"], place_of(first), first["pass"],
                   frozenset(map(place_of, first["region"])), first.get("budgets") or 0, notes)


def named(verdict: Verdict, regions: Regions, of: Suspects) -> str:
    """How well a verdict names a bug that these places suffer from."""
    if of.first is None:
        return NO_EFFECT if verdict.verdict == "clean" else WRONG
    if verdict.verdict == "clean":
        return MISSED
    if verdict.place is None:
        return UNSURE
    at = (verdict.number, verdict.place)
    if at not in of.all:
        return WRONG
    if verdict.region != regions.of(verdict.place):
        return REGION
    return RIGHT if at == of.first else LATER


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A case, judged with some points left out."""

    kind: str            # bug or right
    case: str
    model: str
    dtype: str
    attention: str
    selection: str
    declared: bool
    outcome: str
    expected: str
    verdict: Verdict
    shown: Shown | None  # what the bug comes to at the first place that may be named


def text_of(at: tuple[int, Place] | None) -> str:
    if at is None:
        return ""
    number, (layer, point) = at
    return f"pass {number} {point if layer < 0 else f'layer {layer} {point}'}"


def judged(binary: str, path: pathlib.Path, setting: Setting, runner: cases.Runner,
           selection: str, rounding: dict[str, str], provenance: dict[str, str],
           ways: tuple[bool, ...]) -> Iterator[tuple[bool, Verdict]]:
    """The verdict on a selection of the run: with its rounding declared, and without."""
    trace = cases.trace_of(setting, runner, SELECTIONS[selection], rounding, provenance)
    trace_file.write(path, trace)
    for declared in sorted(ways, reverse=True):
        if not declared:
            trace_file.redeclare(path, {})
        yield declared, judge(binary, path, setting.folder)


def outcomes_of(binary: str, path: pathlib.Path, setting: Setting, case: Bug | Variant,
                selections: list[str], ways: tuple[bool, ...] = (True, False),
                ) -> Iterator[Outcome]:
    """A run of the case, judged with each selection of its points."""
    is_bug = isinstance(case, Bug)
    runner = (cases.run_bug if is_bug else cases.run_variant)(setting, case)
    wrong = cases.wrong_places(setting, runner) if is_bug else set()
    graph = cases.trace_of(setting, runner, None, None, {}).graph
    for selection in selections:
        if isinstance(case, Unrounded) and not case.fits_selection(selection):
            continue
        regions = Regions(graph, SELECTIONS[selection])
        of = suspects(regions, wrong)
        shown = None
        if of.first is not None:
            shown = cases.shown_at(setting, runner, SELECTIONS[selection], regions.seen, of.first)
        rounding, facts = ({}, {}) if is_bug else (case.rounding, case.provenance)
        for declared, verdict in judged(binary, path, setting, runner, selection, rounding, facts,
                                        ways):
            if is_bug:
                outcome = named(verdict, regions, of)
            else:
                outcome = {"clean": CLEAN, "diverged": ALARM}.get(verdict.verdict,
                                                                  verdict.verdict)
            yield Outcome("bug" if is_bug else "right", case.name,
                          pathlib.Path(setting.folder).name, setting.dtype, setting.attention,
                          selection, declared, outcome, text_of(of.first), verdict, shown)
