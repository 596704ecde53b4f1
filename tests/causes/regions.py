"""What is said of bugs in ops that a trace does not show, and of right runs: nothing.

regions.py LOCKSTEP MODELS [--only REGEX] [--which A,B] [--dtypes bf16,fp32] [--ops FOLDER]
           [--clean N] [--want SHARE] [--jobs N] [--seconds N]

Each fault is seeded into a run whose trace keeps some points; what is judged from that must be
named with the hidden op that it is in. Prints a row a run: named, beside (with another that
explains it as well), nothing, wrong, or not seen.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import table

ENDS = ("embed", "final.norm", "logits", "token")
SIX = ("attn.norm", "attn.q", "attn.out", "attn.residual", "mlp.norm", "mlp.residual")
MODULES = ("attn.norm", "attn.q", "attn.k", "attn.v", "attn.q_norm", "attn.k_norm", "attn.o",
           "mlp.norm", "mlp.gate", "mlp.up", "mlp.down")
WITHOUT_MLP = (*MODULES[:7], "attn.q_rope", "attn.k_rope", "attn.kv", "attn.out",
               "attn.residual", "mlp.norm", "mlp.residual")
LINEARS = ("attn.norm", "attn.q", "attn.k", "attn.v", "attn.o", "mlp.norm", "mlp.gate", "mlp.up",
           "mlp.down")
KEPT = {"six": SIX, "modules": MODULES, "without-mlp": WITHOUT_MLP, "linears": LINEARS}
# The bug, what the trace keeps, and the points that may be named for it.
FAULTS = [
    ("rope-interleaved", "six", "attn.q_rope|attn.k_rope"),
    ("rope-interleaved", "modules", "attn.q_rope|attn.k_rope"),
    ("rope-over-half-of-the-dims", "modules", "attn.q_rope|attn.k_rope"),
    ("qk-norm-missing", "six", "attn.q_norm|attn.k_norm"),
    ("qk-norm-over-16-wide-blocks", "six", "attn.q_norm|attn.k_norm"),
    # Both of q and k are hidden and wrong in the same way.
    ("rope-interleaved", "linears", "attn.q_rope and attn.k_rope"),
    ("qk-norm-missing", "linears", "attn.q_norm and attn.k_norm"),
    ("qk-norm-over-16-wide-blocks", "linears", "attn.q_norm and attn.k_norm"),
    ("norm-mean-subtracted", "without-mlp", "attn.norm"),
    ("softmax-scale-missing", "modules", "attn.out"),
    ("softmax-scale-twice", "modules", "attn.out"),
    ("gqa-map-modulo", "modules", "attn.out"),
    ("causal-mask-off-by-one", "modules", "attn.out"),
    ("k-and-v-swapped", "modules", "attn.out"),
    ("residual-twice", "modules", "attn.residual|mlp.residual"),
    ("residual-missing", "modules", "attn.residual|mlp.residual"),
    ("gelu-for-silu", "modules", "mlp.act"),
    ("gelu-for-silu", "six", "mlp.act"),
    ("gate-and-up-swapped", "six", "mlp.act"),
    ("weight-layout-transposed", "without-mlp", "mlp.gate|mlp.up|mlp.down"),
    ("bias-dropped", "six", "attn.k|attn.v"),
]
OPS = [
    ("quick_gelu", "modules", "mlp.act"),
    ("clamped_swiglu", "six", "mlp.act"),
    ("branch_twice", "modules", "attn.residual|mlp.residual"),
    ("first_kv_head", "modules", "attn.out"),
    ("softmax_one", "modules", "attn.out"),
    ("rope_one_based", "modules", "attn.q_rope|attn.k_rope"),
    ("rope_conjugate", "six", "attn.q_rope|attn.k_rope"),
    ("rope_before_norm", "six", "attn.q_norm|attn.q_rope"),
    ("v_of_next_head", "modules", "attn.out"),
    ("v_turned", "modules", "attn.out|attn.v"),
]


def judged(options, folder, model, dtype, kept, more):
    trace, out = folder / "x.trace", folder / "result.json"
    shutil.rmtree(trace, ignore_errors=True)
    out.unlink(missing_ok=True)
    tokens = [",".join(str((7 * i * (r + 3) + i * i) % 60 + 1) for i in range(18 + 9 * r))
              for r in range(2)]
    asked = [text for some in tokens for text in ("--tokens", some)]
    made = subprocess.run([options.binary, "run", "--model", str(model), "--dtype", dtype,
                           "--trace", str(trace), "--keep", "full", "--max-new", "3", "--quiet",
                           "--threads", "1", "--points", ",".join((*ENDS, *KEPT[kept])),
                           *asked, *more],
                          capture_output=True, text=True, check=False)
    if not trace.exists():
        return None, made.stderr.strip(), 0
    began = time.monotonic()
    ran = subprocess.run([options.binary, "judge", str(trace), "--model", str(model), "--quiet",
                          "--json", str(out)], capture_output=True, text=True, check=False)
    if not out.exists():
        return None, ran.stderr.strip(), 0
    return json.loads(out.read_text()), "", time.monotonic() - began


def grade(result, right, points):
    said = [like["says"] for place in result["points"] for like in place["looks_like"]]
    if not result["findings"]:
        return ("wrong" if said else "not seen"), said
    if not said:
        return "nothing", said
    # What was recorded after all, as producers of what was asked for are, is named by its place.
    hits = [s for s in said if (re.search(rf" in ({points})\b", s) or " in attn." not in s
                                and " in mlp." not in s)
            and re.search(right, re.split(r" in (?:attn|mlp)\.", s)[0])]
    if not hits:
        return "wrong", said
    return ("named" if len(hits) == len(said) else "beside"), said


def by_turns(cases):
    """Of each bug one of the selections that a trace keeps, by turns."""
    of_bug = {}
    for case in cases:
        of_bug.setdefault(case[0], []).append(case)
    return [rows[turn % len(rows)] for turn, rows in enumerate(of_bug.values())]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--which", default="bard-qwen3,bard-qwen2.5")
    parser.add_argument("--dtypes", default="bf16,fp32")
    parser.add_argument("--ops", type=pathlib.Path)
    parser.add_argument("--clean", type=int, default=0, help="right runs, instead of bugs")
    parser.add_argument("--want", type=float, default=0, help="least share of the seen to be named")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seconds", type=int, default=0, help="begin no run after so many")
    table.add_small(parser)
    options = parser.parse_args()
    cases = OPS if options.ops else FAULTS
    rights = table.OPS if options.ops else table.RIGHT
    if options.clean:
        cases = [(f"clean-{i}", list(KEPT)[i % 3], "") for i in range(options.clean)]
    tally = {}
    cases = [case for case in cases if re.search(options.only, case[0])]
    cases = by_turns(cases) if table.is_small(options) else cases
    cases = [(*case, model, dtype) for case in cases
             for model in table.models_of(options) for dtype in options.dtypes.split(",")]

    def work(case):
        bug, kept, _, model, dtype = case
        more = (["--page-order", bug[6:], "--chunk", str(5 + len(kept))] if options.clean else
                ["--ops", str(options.ops / f"{bug}.so")] if options.ops else
                ["--fault", f"{bug}@layer=2"])
        with tempfile.TemporaryDirectory() as folder:
            return case, judged(options, pathlib.Path(folder), options.models / model, dtype, kept,
                                more)

    for (bug, kept, points, model, dtype), (result, why, seconds) in table.as_done(
            options, work, cases):
        if result is None:
            print(f"{bug:30} {kept:12} {model:13} {dtype}  --  {why[:80]}")
            tally["trouble"] = tally.get("trouble", 0) + 1
            continue
        what, said = grade(result, rights.get(bug, "$^"), points)
        tally[what] = tally.get(what, 0) + 1
        print(f"{bug:30} {kept:12} {model:13} {dtype}  {what:8} {seconds:5.1f} s  "
              f"{' | '.join(said)}", flush=True)
    seen = sum(n for what, n in tally.items() if what not in ("not seen", "trouble"))
    good = tally.get("named", 0) + tally.get("beside", 0)
    print(tally, f"named {good} of {seen}")
    return table.status_of(options, tally, good, seen, tally.get("wrong", 0))


if __name__ == "__main__":
    sys.exit(main())
