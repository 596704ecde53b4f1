"""What the seeded faults, and the wrong kernels beside this file, are said to look like.

table.py LOCKSTEP MODELS [--only REGEX] [--which A,B] [--dtypes bf16,fp32,fp16] [--layers 0,3]
         [--ops FOLDER] [--want SHARE] [--jobs N] [--seconds N] [--device cuda]

Prints a row a run: named, nothing said, wrong, or not seen (the run was clean). Which sentences
count as right for a fault stands here alone: the product knows no fault by name. --layers: each run
takes the next of them, from the beginning again after the last. --ops: instead of the faults, the
wrong kernels that were built into that folder. Several causes that are equal on a run's input are
printed beside each other; those pairs are listed at the end. --seconds: runs that have not begun
by then are left out and counted; the runs are mixed, so that those made are a sample.
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

REQUESTS = [
    {"prompt": "Shall I compare thee to a summer's day? Thou art more lovely and more temperate",
     "max_new": 5},
    {"prompt": "To be, or not to be", "max_new": 6},
    {"prompt": "The quality of mercy is not strained; it droppeth as the gentle rain from heaven "
               "upon the place beneath", "max_new": 4}]

# By fault: what must stand in one of the sentences about the place of the first finding.
RIGHT = {
    "rope-interleaved": r"interleaved pairs \(2j",
    "rope-position-off-by-one-in-decode": r"RoPE by positions off by -1",
    "rope-theta-ignored": r"by the base 10000$",
    "yarn-factor-twice": r"scaling factor twice",
    "qk-norm-missing": r"no norm at all",
    "qk-norm-over-16-wide-blocks": r"over blocks of 16$",
    "gqa-map-modulo": r"modulo",
    "softmax-scale-missing": r"not scaled",
    "causal-mask-off-by-one": r"off by one: each query sees the key after",
    "sliding-window-off-by-one": r"sliding window of",
    "chunk-lengths-of-another-row": r"context length of the (request -1|other request)",
    "last-page-tail-unmasked": r"unused slots",
    "wrong-page": r"page table of request",
    "page-table-stride": r"one page narrower",
    "slot-offset-32-bit": r"slots \d+ apart share",
    "token-cached-twice": r"token before cached again",
    "new-token-never-cached": r"nobody wrote",
    "stale-prefix-page": r"its page holds what request",
    "page-freed-too-early": r"its page holds what request",
    "written-while-shared": r"its page holds what request",
    "swap-restores-another-page": r"its pages [+-]?\d+ further on",
    "moe-expert-order": r"weights in the opposite order",
    "moe-router-not-normalised": r"not divided by the sum",
    "rms-norm-eps": r"RMSNorm with eps (1e-05|0\.001|0\.1)",
    "rope-tables-16-bit": r"tables rounded to bf16",
    "rope-positions-16-bit": r"positions rounded to \d+ bits",
    "rope-over-half-of-the-dims": r"first 0.5 of the pairs",
    "qk-norm-after-rope": r"no norm at all|normed after",
    "qk-norm-gain-of-another-shard": r"gain \d+ elements further",
    "norm-gain-plus-one": r"gain 1 \+ w",
    "norm-mean-subtracted": r"mean is subtracted",
    "norm-eps-outside-root": r"eps added outside",
    "norm-16-bit-sum": r"squares added up in bf16",
    "norm-gain-after-16-bit-cast": r"rounded to bf16 before the gain",
    "softmax-scale-of-another-head-dim": r"scaled by \S+ times head_dim",
    "softmax-scale-twice": r"scaled twice",
    "causal-mask-top-left": r"top-left",
    "split-merge-log2-with-ln": r"by e\^x of logs to the base 2",
    "split-merge-max-missing": r"without their largest",
    "split-partials-16-bit": r"rounded to bf16 before they are merged",
    "split-without-keys": r"NaN of a split of",
    "v-scale-of-another-head": r"V of the last K/V head times",
    "k-and-v-swapped": r"K and V exchanged",
    "bias-dropped": r"bias left out",
    "bias-twice": r"bias added twice",
    "weight-rows-shifted": r"weight \+1 row",
    "projection-dead": r"never computed",
    "weight-layout-transposed": r"transposed",
    "one-element-off": r"one element",
    "residual-missing": r"stream dropped",
    "residual-twice": r"stream added twice",
    "last-row-uses-row-before": r"last row of each request",
    "output-tile-never-written": r"last 64 columns never written",
    "gate-and-up-swapped": r"gate and up exchanged",
    "gelu-for-silu": r"GELU for SiLU",
    "activation-overflows-fp16": r"through fp16 at",
    "accumulator-16-bit": r"rounded to bf16 after every",
    "token-repeated": r"prompt's last token",
    "embedding-of-next-id": r"embedding of the id \+1",
    "logits-of-another-request": r"result of the (row \+1|other row)",
    "head-is-stale": r"last 64 outputs made of the weights of those before",
    "argmax-takes-runner-up": r"runner-up",
}
NOTHING = r"^$"  # what is said where nothing explains the first finding, and should not
OPS = {
    "padded_norm": r"sum of squares divided by|mean over|padded",
    "k_norm_of_q": r"gain of the other norm",
    "softcap": r"scores capped at 10",
    "softmax_one": r"sink",
    "first_kv_head": r"K/V head 0",
    "first_kv_head_rounded": r"K/V head 0",
    "window_for_all": r"sliding window of 16",
    "first_page_again": r"first page read for every",
    "rope_one_based": r"off by \+1(, in some of its rows alone)?$",
    "rope_conjugate": r"halves of a head exchanged",
    "k_tail": r"last 64 inputs left out",
    "fused_qkv_order": r"heads in another order|right results in columns of others",
    "branch_twice": r"branch added twice",
    "quick_gelu": r"quick GELU",
    "clamped_swiglu": r"clamped to",
    "scaled_embedding": r"sqrt\(hidden\)",
    "gain_twice": r"gain twice",
    "rope_in_place": r"RoPE in place",
    "rope_sections": r"handed on, in dims (8 to 19 and 40 to 51|4 to 9 and 20 to 25) alone$",
    "no_rescale": r"never rescaled",
    "score_of_first_lanes": r"first 32 dims",
    "fp8_cache": r"K and V.*fp8",
    "alibi": r"ALiBi|distance",
    "prefix_twice": r"first (16|page).* twice",
    "whole_pages": r"last (page|split) of 16",
    "first_key_unseen": r"first key not seen",
    "heads_of_groups": r"heads in another order",
    "fp8_weights": r"weight.*fp8",
    "rows_of_first_tile": r"first 16 rows",
    "scale_twice": r"times 0\.0123",
    "up_plus_one": r"up \+ 1",
    "sigmoid_gate": r"^sigmoid for SiLU",
    "residual_after_norm": r"normed stream",
    "branch_scaled": r"branch times 0\.22",
    "capped_logits": r"capped at 30",
    "vocabulary_of_rank": r"ids? (from|past|over) 2048",
    "part_of_head": r"last 8 elements left out of the sum, in head 2 alone$",
    "part_of_rows": r"RoPE by positions off by \+1, in some of its rows alone$",
    "part_of_dims": r"handed on, in dims 0 to 3 and (32 to 35|16 to 19) of head 1 alone",
    "part_of_columns": r"last 8 inputs left out of the sum, in columns 4000 to 4095 alone$",
    "nan_not_cached": NOTHING,
    "gate_held": NOTHING,
    "heads_before_positions": r"HND for NHD",
    "cache_by_head": r"HND\) where",
    "qkv_by_group": r"as if by K/V head",
    "expert_capacity": r"first 3 of each expert",
    "masked_with_zero": r"masked keys with a score of 0",
    "masked_after_softmax": r"masked keys left out after",
    "v_turned": r"V turned by RoPE",
    "v_projected_turned": r"^its heads turned by RoPE$",
    "v_of_next_head": r"^the V of the (other K/V head|K/V head \+1) read",
    "rope_before_norm": r"RoPE before the norm|no rotation at all",
}
# What may be said of places further on, where it is another thing than of the first.
FURTHER = {"nan_not_cached": r"nobody wrote"}


def run(binary, model, requests, dtype, more):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "result.json")
        command = [binary, "run", "--model", str(model), "--requests", str(requests), "--dtype",
                   dtype, "--quiet", "--threads", "1", "--json", str(out), *more]
        began = time.monotonic()
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if not out.exists():
            return None, ran.stderr.strip().splitlines()[-1:], 0
        return json.loads(out.read_text()), ran.returncode, time.monotonic() - began


def as_done(options, work, items):
    """What work makes of each item, options.jobs at a time, as soon as it is done. With
    options.seconds the items are mixed, and those not begun by then left out."""
    until = time.monotonic() + options.seconds if options.seconds else float("inf")
    if options.seconds:
        random.Random(1).shuffle(items)

    def one(item):
        return work(item) if time.monotonic() < until else None

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        done = concurrent.futures.as_completed([pool.submit(one, item) for item in items])
        made = 0
        for result in (future.result() for future in done):
            if result is not None:
                made += 1
                yield result
    if made < len(items):
        print(f"{len(items) - made} of {len(items)} left out after {options.seconds} seconds")


def sentences(result):
    """Of the place of the first finding."""
    first = result["first"]
    for place in result["points"]:
        if first and (place["layer"], place["point"]) == (first["layer"], first["point"]):
            return [like["says"] for like in place["looks_like"]]
    return []


def astray(result, right):
    """What is said of places further on that is not so."""
    first = result["first"]
    return [f"{place['layer']} {place['point']}: {place['looks_like'][0]['says']}"
            for place in result["points"]
            if first and (place["layer"], place["point"]) != (first["layer"], first["point"])
            and place["looks_like"]
            and not any(re.search(right, like["says"]) for like in place["looks_like"])]


def grade(result, right):
    if not result["findings"]:
        said = [like for place in result["points"] for like in place["looks_like"]]
        return ("wrong" if said else "not seen"), said
    said = sentences(result)
    if not said:
        return ("named" if right == NOTHING else "nothing"), said
    return ("named" if any(re.search(right, s) for s in said) else "wrong"), said


def add_small(parser):
    parser.add_argument("--small", default="", help="a model in the place of the others, unless "
                                                    "LOCKSTEP_WHOLE is set")


def is_small(options):
    return options.small != "" and "LOCKSTEP_WHOLE" not in os.environ


def models_of(options):
    return (options.small if is_small(options) else options.which).split(",")


def status_of(options, tally, named, seen, wrong):
    """Where a share is wanted, none of none is not enough, nor what was left out by trouble."""
    lacks = options.want > 0 and (seen == 0 or tally.get("trouble", 0) > 0)
    return 1 if lacks or wrong or named < options.want * seen else 0


def asked():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--only", default="", help="faults whose names it finds")
    parser.add_argument("--which", default="bard-qwen3,bard-qwen2.5,tiny/qwen3-moe,tiny/qwen3-yarn,"
                                           "tiny/qwen2-sliding")
    parser.add_argument("--dtypes", default="bf16,fp32,fp16")
    parser.add_argument("--layers", default="3")
    parser.add_argument("--ops", type=pathlib.Path)
    parser.add_argument("--want", type=float, default=0, help="least share of the seen to be named")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seconds", type=int, default=0, help="begin no run after so many")
    parser.add_argument("--device", default="cpu")
    add_small(parser)
    return parser.parse_args()


def main():
    options = asked()
    tally, pairs = {}, collections.Counter()
    layers_in_turn = itertools.cycle(int(layer) for layer in options.layers.split(","))
    with tempfile.TemporaryDirectory() as folder:
        requests = pathlib.Path(folder, "requests.jsonl")
        requests.write_text("".join(json.dumps(r) + "\n" for r in REQUESTS))
        tokens = pathlib.Path(folder, "tokens.jsonl")
        tokens.write_text("".join(json.dumps({"tokens": [(7 * i * (r + 3) + i * i) % 60 + 1
                                                         for i in range(20 + 9 * r)],
                                              "max_new": 4}) + "\n" for r in range(3)))
        table = OPS if options.ops else RIGHT
        cases = [(name, model, dtype, next(layers_in_turn))
                 for name in table if re.search(options.only, name)
                 for model in models_of(options) for dtype in options.dtypes.split(",")]

        def judged(case):
            name, model, dtype, layer = case
            path = options.models / model
            layers = json.loads((path / "config.json").read_text())["num_hidden_layers"]
            fault = f"{name}@layer={min(layer, layers - 1)}"
            more = ["--ops", str(options.ops / f"{name}.so")] if options.ops else ["--fault", fault]
            more += ["--device", options.device]
            served = requests if (path / "tokenizer.json").exists() else tokens
            ran = run(options.binary, path, served, dtype, more)
            if ran[0] is None and "layer" in str(ran[1]):
                ran = run(options.binary, path, served, dtype,
                          ["--fault", name, "--device", options.device])
            return case, ran

        for (name, model, dtype, _), (result, status, seconds) in as_done(options, judged, cases):
            if result is None:
                print(f"{name:36} {model:18} {dtype}  --  {status}"[:160])
                tally["trouble"] = tally.get("trouble", 0) + 1
                continue
            what, said = grade(result, table[name])
            tally[what] = tally.get(what, 0) + 1
            beyond = astray(result, FURTHER.get(name, table[name]))
            tally["astray"] = tally.get("astray", 0) + (1 if beyond else 0)
            if what == "named" and len(said) > 1:
                pairs[f"{name}: {' | '.join(said)}"] += 1
            first = result["first"]
            where = f"{first['layer']} {first['point']} {first['statistic']}" if first else ""
            print(f"{name:36} {model:18} {dtype}  {what:8}  {seconds:4.1f} s  {where}  "
                  f"{' | '.join(said)}{' | ASTRAY: ' if beyond else ''}{'; '.join(beyond[:2])}",
                  flush=True)
    for pair, times in sorted(pairs.items()):
        print(f"equal on this input, in {times}: {pair}")
    seen = sum(n for what, n in tally.items() if what not in ("not seen", "astray", "trouble"))
    print(tally, f"named {tally.get('named', 0)} of {seen}")
    wrong = tally.get("wrong", 0) + tally.get("astray", 0)
    return status_of(options, tally, tally.get("named", 0), seen, wrong)


if __name__ == "__main__":
    sys.exit(main())
