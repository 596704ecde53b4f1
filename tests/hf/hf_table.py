"""Judges right and wrong runs of Hugging Face's models, and prints how well that went.

python hf_table.py --lockstep BIN --models DIR ... [--dtypes bf16,fp32] [--attention sdpa,eager]
    [--only GLOB,...] [--quick] [--json FILE]
"""
from __future__ import annotations

import argparse
import collections
import dataclasses
import fnmatch
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

import torch

import judging
from bug import Bug
from bugs import BUGS
from judging import LATER, MISSED, NO_EFFECT, RIGHT, UNSURE, WRONG, Setting, Verdict
from variant import Variant
from variants import VARIANTS

# A choice of these, few enough for a look: one for each kind of op.
QUICK = {
    "norm-eps-1e-5", "norm-mean-subtracted", "q-norm-whole-row", "rope-interleaved",
    "rope-position-plus-one-in-decode", "rope-angles-in-bf16", "mask-one-ahead", "scale-missing",
    "gqa-interleaved", "cache-last-key-stale", "q-bias-missing", "down-rows-shifted", "up-e4m3",
    "o-bf16-blocks", "v-toward-zero", "act-gelu", "attn-residual-missing", "embed-next-id",
    "head-one-row-stale", "token-runner-up", "experts-not-normalised", "ulp-2-up-column",
    "plain", "chunks-2", "static-cache", "linear-split-k", "norm-fused", "rope-fp32-once",
    "act-fused", "attention-flash", "batch-padded", "without-kv"}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One run of one case."""

    kind: str            # bug, right, or lacks
    case: str
    model: str
    dtype: str
    attention: str
    declared: bool
    outcome: str
    expected: str
    verdict: Verdict
    effect: dict | None


def text_of(place: judging.Place | None) -> str:
    return "" if place is None else (place[1] if place[0] < 0 else f"layer {place[0]} {place[1]}")


def outcomes_of_bug(binary: str, path: pathlib.Path, setting: Setting, bug: Bug,
                    ) -> Iterator[Outcome]:
    """The bug declared and undeclared; with what it does at its own op."""
    model = setting.model()
    layers, runner = bug.layers(model), judging.run_bug(setting, bug)
    first = judging.first_wrong(model, runner.passes)
    if first is not None and first[1][1] != bug.point:
        sys.exit(f"{bug.name}: meant to show at {bug.point}, shows at {text_of(first[1])}")
    place = bug.place(model) if first is None else first[1]
    size = dataclasses.asdict(judging.effect(setting, runner, place))
    for declared, verdict in judging.judge_both(binary, path, setting, runner, {}):
        yield Outcome("bug", bug.name, pathlib.Path(setting.folder).name, setting.dtype,
                      setting.attention, declared, judging.named(verdict, bug, layers, first),
                      text_of(place), verdict, size)


def outcomes_of_variant(binary: str, path: pathlib.Path, setting: Setting, variant: Variant,
                        ) -> Iterator[Outcome]:
    """The variant with its own rounding declared, and undeclared."""
    runner = judging.run_variant(setting, variant)
    for declared, verdict in judging.judge_both(binary, path, setting, runner, variant.rounding,
                                                variant.provenance):
        outcome = {"clean": "clean", "diverged": "ALARM"}.get(verdict.verdict, verdict.verdict)
        yield Outcome("lacks" if variant.lacks else "right", variant.name,
                      pathlib.Path(setting.folder).name, setting.dtype, setting.attention,
                      declared, outcome, "clean", verdict, None)


def wanted(setting: Setting, options: argparse.Namespace) -> tuple[list[Bug], list[Variant]]:
    """What can be run there; with eager attention, of the bugs those of attention alone."""
    def chosen(name: str) -> bool:
        if options.quick:
            return name in QUICK
        return any(fnmatch.fnmatch(name, glob) for glob in options.only.split(","))

    model = setting.model()
    bugs = [bug for bug in BUGS.values() if chosen(bug.name) and bug.possible(model, setting.dtype)
            and (setting.attention == "sdpa" or bug.point in ("attn.out", "attn.kv"))]
    variants = [variant for variant in VARIANTS.values()
                if chosen(variant.name) and variant.possible(model, setting.dtype)]
    return bugs, variants


def all_outcomes(options: argparse.Namespace, folder: pathlib.Path) -> Iterator[Outcome]:
    path = folder / "case.h5"
    for model in options.models:
        for dtype in options.dtypes.split(","):
            for attention in options.attention.split(","):
                setting = Setting(model, dtype, attention, options.count, options.steps)
                bugs, variants = wanted(setting, options)
                for bug in bugs:
                    yield from outcomes_of_bug(options.lockstep, path, setting, bug)
                for variant in variants:
                    yield from outcomes_of_variant(options.lockstep, path, setting, variant)


def heading(outcome: Outcome) -> tuple[str, ...]:
    return (outcome.model, outcome.dtype, outcome.attention,
            "declared" if outcome.declared else "undeclared")


def size_of(outcome: Outcome) -> str:
    size = outcome.effect
    if not size:
        return ""
    return (f"max {size['max_ulp']:.3g} ulp, mean {size['mean_ulp']:.2g}, "
            f"{100 * size['share']:.2g} % of elements")


def print_table(title: str, columns: Iterable[str], outcomes: list[Outcome]) -> None:
    columns = list(columns)
    counts: dict[tuple, collections.Counter] = collections.defaultdict(collections.Counter)
    for outcome in outcomes:
        counts[heading(outcome)][outcome.outcome] += 1
    if not counts:
        return
    print(f"\n{title:44s}" + "".join(f"{column:>16s}" for column in columns))
    for key, count in counts.items():
        rest = sum(count.values()) - sum(count[column] for column in columns)
        print(f"{' '.join(key):44s}" + "".join(f"{count[column]:16d}" for column in columns)
              + (f"  and {rest} else" if rest else ""))


def print_names(outcomes: list[Outcome], dull: set[str]) -> None:
    """The cases that did not go as they should, by setting and outcome."""
    groups: dict[tuple, list[Outcome]] = collections.defaultdict(list)
    for outcome in outcomes:
        if outcome.outcome not in dull:
            groups[outcome.outcome, heading(outcome)].append(outcome)
    for (kind, key), members in sorted(groups.items(), key=lambda item: item[0]):
        print(f"\n{kind}: {' '.join(key)}")
        for o in members:
            print(f"  {o.case} (expected {o.expected}; {size_of(o) or o.verdict.judged})")
            if kind not in (MISSED, NO_EFFECT):
                print(f"      {o.verdict.story[:300]}")


def print_all(outcomes: list[Outcome]) -> None:
    parts = {kind: [o for o in outcomes if o.kind == kind] for kind in ("bug", "right", "lacks")}
    print_table("bugs", (RIGHT, LATER, WRONG, MISSED, UNSURE, NO_EFFECT), parts["bug"])
    print_table("right runs", ("clean", "ALARM", "inconclusive"), parts["right"])
    print_table("right runs without some points", ("clean", "ALARM", "inconclusive"),
                parts["lacks"])
    print_names(parts["bug"], {RIGHT})
    print_names(parts["right"], {"clean"})
    print_names(parts["lacks"], {"clean"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--lockstep", required=True, help="the program that judges")
    parser.add_argument("--models", nargs="+", required=True, help="checkpoint folders")
    parser.add_argument("--dtypes", default="bf16,fp32")
    parser.add_argument("--attention", default="sdpa,eager")
    parser.add_argument("--count", type=int, default=97, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=6, help="tokens that follow")
    parser.add_argument("--only", default="*", help="cases with such names")
    parser.add_argument("--quick", action="store_true", help="one case for each kind of op")
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
    print(f"\n{len(outcomes)} runs in {time.monotonic() - begun:.0f} s")
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(o) for o in outcomes], indent=1))


if __name__ == "__main__":
    main()
