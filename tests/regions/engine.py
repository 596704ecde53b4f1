"""Runs of the engine with seeded faults and without, of which the trace keeps some points."""
from __future__ import annotations

import functools
import json
import pathlib
import subprocess
from collections.abc import Iterator

import cases
from cases import Setting
from outcomes import (ALARM, CLEAN, LATER, MISSED, REGION, RIGHT, UNSURE, WRONG, Outcome, Verdict,
                      judge)
from lockstep import Trace
from lockstep.graph import graph_of, read_config
from selections import SELECTIONS, Regions
from trace_file import Place, place_order

# A run as each fault needs one: several pages out of order, chunks, decode, two requests.
SERVING = ("--page-size", "8", "--page-order", "3", "--chunk", "16", "--max-new", "4")
SCHEDULES = {
    "served": SERVING,
    "at-once": ("--page-size", "16", "--max-new", "4"),
    "single-slots": ("--page-size", "1", "--max-new", "3"),
    "chunks-of-3": ("--page-size", "4", "--chunk", "3", "--max-new", "3"),
    "random-schedule": ("--page-size", "8", "--schedule", "5", "--max-new", "4"),
    "prefix-cache": (*SERVING, "--prefix-cache"),
    "preempted": ("--page-size", "8", "--pages", "11", "--max-new", "9"),
    "swapped": ("--page-size", "8", "--pages", "11", "--preempt", "swap", "--max-new", "9"),
}
# What a fault in q does to k too.
BESIDE = {"attn.q_rope": "attn.k_rope", "attn.q_norm": "attn.k_norm"}


@functools.cache
def faults(binary: str) -> dict[str, tuple[str, bool]]:
    """The first point that shows each fault, of those that are not of a device, and whether it can
    be of one layer alone."""
    listed = json.loads(subprocess.run([binary, "faults", "--format", "json"], check=True,
                                       capture_output=True, text=True).stdout)
    return {row["fault"]: (row["first seen at"], row["layers"] != "all") for row in listed
            if "cuda" not in row["needs"]}


def prompts(setting: Setting) -> list[str]:
    ids = cases.capture.prompt_of(setting.folder, setting.count)
    both = (ids, ids[:setting.count // 2] + ids[:7])
    return [text for prompt in both for text in ("--tokens", ",".join(map(str, prompt)))]


def run(binary: str, path: pathlib.Path, setting: Setting, selection: str,
        options: tuple[str, ...]) -> str:
    """Leaves a trace of the selection; says why there is none."""
    kept = SELECTIONS[selection]
    some = () if kept is None else ("--points", ",".join(sorted(kept)))
    path.unlink(missing_ok=True)
    made = subprocess.run([binary, "run", "--model", setting.folder, "--dtype", setting.dtype,
                           "--trace", str(path), "--keep", "full", "--format", "json", *some,
                           *prompts(setting), *options], capture_output=True, text=True,
                          check=False)
    return "" if path.exists() else made.stderr.strip()


def recorded(path: pathlib.Path) -> frozenset[str]:
    """The points that the trace has: those that were asked for, and what their ops read."""
    with Trace(path) as trace:
        return frozenset(tensor.point for tensor in trace.tensors)


def named(verdict: Verdict, regions: Regions, wrong: set[Place]) -> str:
    """How well the verdict names a fault of these places, whatever the pass."""
    if verdict.verdict == "clean":
        return MISSED
    if verdict.place is None:
        return UNSURE
    holders = sorted((at for at in regions.seen if regions.hold(at, wrong)), key=place_order)
    if verdict.place not in holders:
        return WRONG
    if verdict.region != regions.of(verdict.place):
        return REGION
    return RIGHT if verdict.place == holders[0] else LATER


def outcomes_of_fault(binary: str, path: pathlib.Path, setting: Setting, name: str, layer: int,
                      selections: list[str]) -> Iterator[Outcome]:
    graph = graph_of(read_config(setting.folder))
    point, one = faults(binary)[name]
    wrong = {(node.layer, node.point) for node in graph if not (one and node.layer != layer)
             and node.point in (point, BESIDE.get(point))}
    for selection in selections:
        why = run(binary, path, setting, selection,
                  (*SERVING, "--fault", f"{name}@layer={layer}" if one else name))
        verdict = Verdict("trouble", why) if why else judge(binary, path, setting.folder)
        regions = Regions(graph, frozenset() if why else recorded(path))
        yield Outcome("bug", name, pathlib.Path(setting.folder).name, setting.dtype, "engine",
                      selection, True, "trouble" if why else named(verdict, regions, wrong),
                      f"layer {layer} {point}", verdict, None)


def outcomes_of_schedule(binary: str, path: pathlib.Path, setting: Setting, name: str,
                         selections: list[str]) -> Iterator[Outcome]:
    for selection in selections:
        why = run(binary, path, setting, selection, SCHEDULES[name])
        verdict = Verdict("trouble", why) if why else judge(binary, path, setting.folder)
        outcome = {"clean": CLEAN, "diverged": ALARM}.get(verdict.verdict, verdict.verdict)
        yield Outcome("right", name, pathlib.Path(setting.folder).name, setting.dtype, "engine",
                      selection, True, outcome, "", verdict, None)
