"""Runs of Hugging Face's models, right and wrong, and what their ops should have made."""
from __future__ import annotations

import copy
import dataclasses
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hf"))
import capture  # noqa: E402
import trace_file  # noqa: E402
from capture import Runner  # noqa: E402
from judging import Setting, run_bug, run_variant  # noqa: E402, F401
from recorder import places_seen  # noqa: E402
from right_ops import RightOps, recorded, ulps  # noqa: E402
from trace_file import Pass, Place  # noqa: E402


def wrong_places(setting: Setting, runner: Runner) -> set[tuple[int, Place]]:
    """Pass and place of each op that did not make what its recorded inputs say."""
    ops = RightOps(setting.model(), runner.passes)
    return {(number, place) for number, run in enumerate(runner.passes)
            for place in places_seen(run)
            if not torch.equal(recorded(run, place), ops.right(number, place))}


@dataclasses.dataclass(frozen=True)
class Shown:
    """What a bug comes to at a recorded place, by the right ops of its region."""

    max_ulp: float
    relative_rms: float   # of the difference, by the rms of what is right
    share: float          # of the elements


def shown_at(setting: Setting, runner: Runner, kept: frozenset[str] | None, seen: set[Place],
             at: tuple[int, Place]) -> Shown:
    """Computes the hidden tensors anew from the recorded ones, and compares that place."""
    number, place = at
    passes = [copy.copy(run) for run in runner.passes[:number + 1]]
    ops = RightOps(setting.model(), passes)
    for n, run in enumerate(passes):
        run.tensors, run.caches = dict(run.tensors), dict(run.caches)
        for other in sorted(places_seen(run), key=trace_file.place_order):
            if other in seen or (n, other) == (number, place):
                continue
            if other[1] == "attn.kv":
                run.caches[other[0], 0] = ops.right(n, other)
            else:
                run.tensors[other] = ops.right(n, other)
    got, want = recorded(runner.passes[number], place), ops.right(number, place)
    apart = got.double() - want.double()
    size = apart.square().mean().sqrt() / want.double().square().mean().sqrt()
    return Shown(float(ulps(got, want).max()), float(size), float((apart != 0).double().mean()))


def trace_of(setting: Setting, runner: Runner, kept: frozenset[str] | None,
             rounding: dict[str, str] | None, provenance: dict[str, str]) -> trace_file.Trace:
    """The run's trace with these points alone. rounding: None declares nothing."""
    facts = {"attention": setting.attention} | provenance
    schema = None if rounding is None else capture.declared_rounding(setting.attention, rounding)
    trace = capture.trace_of(setting.model(), runner, facts, schema)
    if kept is not None:
        for run in trace.passes:
            run.tensors = {at: t for at, t in run.tensors.items() if at[1] in kept}
            run.caches = run.caches if "attn.kv" in kept else {}
    return trace


