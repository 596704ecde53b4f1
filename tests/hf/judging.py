"""Runs a case, writes its trace, has `lockstep judge` look at it, and says how that went."""
from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
from collections.abc import Iterator

import torch
from torch import nn

import capture
import trace_file
from bug import Bug
from capture import Plan, Runner
from recorder import places_seen
from right_ops import Effect, RightOps, effect_of, recorded
from trace_file import Pass, Place
from variant import Variant
from variants import chunked


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the judge said: place is that of its first finding."""

    status: int
    verdict: str                # clean, diverged, inconclusive, or trouble
    story: str
    place: Place | None = None
    number: int = -1            # the pass of the first finding
    statistic: str = ""
    value: float = 0
    judged: str = ""            # nodes judged of those expected
    looks_like: tuple[str, ...] = ()


def judge(binary: str, trace: pathlib.Path, folder: str, *more: str) -> Verdict:
    """Has the judge look at a trace."""
    made = subprocess.run([binary, "judge", str(trace), "--model", folder, "--format", "json",
                           *more], capture_output=True, text=True, check=False)
    try:
        result = json.loads(made.stdout)
    except json.JSONDecodeError:
        return Verdict(made.returncode, "trouble", made.stderr.strip())
    nodes = "{judged} of {expected}".format(**result["nodes"])
    first = result["first"]
    if first is None:
        return Verdict(made.returncode, result["verdict"], result["story"], judged=nodes)
    layer = -1 if first["layer"] is None else first["layer"]
    said = tuple(like["says"] for place in result["points"] for like in place["looks_like"]
                 if (place["layer"], place["point"]) == (first["layer"], first["point"]))
    return Verdict(made.returncode, result["verdict"], result["story"], (layer, first["point"]),
                   first["pass"], first.get("statistic", ""), first.get("value") or 0, nodes, said)


def first_wrong(model: nn.Module, passes: list[Pass]) -> tuple[int, Place] | None:
    """The first tensor, as the model ran, whose op did not make what its inputs say."""
    ops = RightOps(model, passes)
    for number, run in enumerate(passes):
        for place in sorted(places_seen(run), key=trace_file.place_order):
            got, want = recorded(run, place), ops.right(number, place)
            if not torch.equal(got, want):
                return number, place
    return None


@dataclasses.dataclass(frozen=True)
class Setting:
    """A checkpoint, and how it is computed."""

    folder: str
    dtype: str
    attention: str
    count: int = 97
    steps: int = 6

    def model(self) -> nn.Module:
        return capture.load(self.folder, self.dtype, self.attention)

    def plan(self) -> Plan:
        return Plan((capture.prompt_of(self.folder, self.count),), self.steps)


def run_bug(setting: Setting, bug: Bug) -> Runner:
    model, plan = setting.model(), setting.plan()
    if "chunks" in bug.needs:
        plan = chunked(40)(plan)
    runner = Runner(model, plan)
    with bug.apply(model, bug.layers(model)):
        runner.run()
    return runner


def run_variant(setting: Setting, variant: Variant) -> Runner:
    model = setting.model()
    runner = Runner(model, variant.plan(setting.plan()), variant.cache(model))
    with variant.patch(model):
        runner.run()
    return runner


def judge_both(binary: str, path: pathlib.Path, setting: Setting, runner: Runner,
               rounding: dict[str, str], provenance: dict[str, str] | None = None,
               ) -> Iterator[tuple[bool, Verdict]]:
    """Writes the run's trace there and judges it: with its rounding declared, and without."""
    facts = {"attention": setting.attention} | (provenance or {})
    schema = capture.declared_rounding(setting.attention, rounding)
    trace_file.write(path, capture.trace_of(setting.model(), runner, facts, schema))
    yield True, judge(binary, path, setting.folder)
    trace_file.redeclare(path, {})
    yield False, judge(binary, path, setting.folder)


RIGHT, LATER, WRONG, MISSED, UNSURE, NO_EFFECT = (
    "right op", "right op later", "WRONG op", "missed", "inconclusive", "no effect")


def named(verdict: Verdict, bug: Bug, layers: list[int], first: tuple[int, Place] | None) -> str:
    """How well a verdict names a bug, whose first wrong tensor is this one."""
    if first is None:
        return NO_EFFECT if verdict.verdict == "clean" else f"{WRONG} (no effect)"
    if verdict.verdict == "clean":
        return MISSED
    if verdict.place is None:
        return UNSURE
    number, place = first
    if verdict.place == place:
        return RIGHT if verdict.number == number else LATER
    same = verdict.place[1] == place[1] == bug.point and verdict.place[0] in layers
    return LATER if same else WRONG


def effect(setting: Setting, runner: Runner, place: Place) -> Effect:
    return effect_of(setting.model(), runner.passes, place)
