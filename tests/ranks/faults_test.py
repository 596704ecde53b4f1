"""Who sees which bug of how ranks share a model - the judge, the comparison of what all ranks have,
that of the collectives that they call, the mode tp - where, and of which rank."""
import json
import os
import subprocess
import tempfile

from ranks import DATA, LOCKSTEP, Checks, run

check = Checks()
WHOLE = "LOCKSTEP_WHOLE" in os.environ
TINY, ROWS = "tiny/qwen3-default", ["--sequence-parallel"]
JUDGE, COPIES, CALLS = {"judge"}, {"copies"}, {"calls"}
# Fault, ranks, options, who of the run beside the reference sees it (CALLS ends the run, so that
# nobody else does), the place of the first finding, words of its rule, and the point of the first
# finding where the model over ranks is compared with one over none (--modes tp). That has no place
# of its own for what a rank adds, and sees it in the sum. Last: the same of a saved trace, which
# has one copy of what all ranks have, and still shows that they had others; and what the finding
# looks like.
CASES = [
    ("rank-reduce-left-out@layer=1", 2, [], JUDGE | COPIES, "attn.o", 1, "", "attn.o",
     {"like": "what rank 0 adds, and no other rank's"}),
    ("rank-reduce-left-out@layer=1", 2, ROWS, JUDGE, "attn.o", 1, "rank", "attn.o", {}),
    ("rank-reduce-left-out-by-one@layer=1", 2, [], CALLS, "attn.o", 1,
     "rank 1 calls the all-reduce of layer 1 mlp.down", "attn.o", {}),
    ("rank-all-reduce-for-scatter@layer=1", 2, ROWS, JUDGE, "attn.o", 1, "rank 1", "attn.o", {}),
    ("rank-all-reduce-for-scatter@layer=1,rank=1", 2, ROWS, CALLS, "attn.o", 1,
     "rank 1 calls the all-reduce of layer 1 attn.o", "attn.o", {}),
    ("rank-bias-added-by-each", 2, [], JUDGE, "attn.o_partial", 0, "rank 1", "attn.o",
     {"model": "tiny/qwen3-bias-mqa"}),
    ("rank-rows-of-another", 2, [], JUDGE, "mlp.gate", 0, "rank 1", "mlp.gate", {}),
    ("rank-kv-heads-dealt", 4, [], JUDGE | COPIES, "attn.k", 0, "rank 1", "attn.k", {}),
    ("rank-vocabulary-off-by-one", 2, [], JUDGE, "embed.partial", None, "rank", "embed", {}),
    ("rank-logits-reversed", 2, [], JUDGE, "logits", None, "rank", "logits",
     {"like": "the ranks' parts in reversed order"}),
    ("rank-stale-norm@layer=2", 2, [], COPIES, "attn.norm", 2,
     "rank 1 leaves rank 0 at layer 2 attn.norm", "attn.norm",
     {"kept": "rank 1 leaves rank 0 at layer 2", "alone": {(2, "attn.norm")}}),
    ("rank-stale-norm@layer=2,rank=0", 2, [], JUDGE | COPIES, "attn.norm", 2,
     "rank 1 leaves rank 0", "attn.norm", {}),
    ("rank-stale-norm@layer=2", 2, ROWS, JUDGE, "attn.norm", 2, "rank 1", "attn.norm",
     {"kept": "rank 1"}),
    ("rank-stale-weight@layer=1", 2, [], JUDGE, "attn.v", 1, "rank 1", "attn.v", {}),
    ("rank-stale-weight@layer=1,rank=0", 2, [], JUDGE, "attn.v", 1, "rank 0", "attn.v", {}),
    ("rank-norm-of-shard@layer=0", 2, [], JUDGE, "mlp.norm", 0, "", "mlp.norm", {}),
    ("rank-norm-of-shard@layer=0", 2, ROWS, JUDGE, "mlp.norm", 0, "rank", "mlp.norm", {}),
    ("rank-other-dtype", 2, [], CALLS, "embed", None, "fp32 where rank 0 calls", "embed", {}),
    ("rank-other-slots", 2, [], JUDGE, "attn.kv", 0, "rank 1", "attn.kv", {"kept": "rank 1"}),
    ("rank-other-token", 2, [], COPIES, "embed.partial", None, "rank 1 leaves rank 0 in what it",
     "embed.partial", {"kept": "rank 1 leaves rank 0 in what it"}),
    # A bug of an op, in one rank alone.
    ("rope-interleaved@layer=1,rank=1", 2, [], JUDGE, "attn.q_rope", 1, "rank 1", "attn.q_rope",
     {"like": "in rank 1"}),
]


def seen_by(rule):
    if "where rank 0 calls" in rule:
        return "calls"
    return "copies" if "leaves rank 0" in rule else "judge"


listed = subprocess.run([LOCKSTEP, "faults"], capture_output=True, text=True).stdout
missing = [word for word in listed.split() if word.startswith("rank-")
           and not any(case[0].partition("@")[0] == word for case in CASES)]
check.that("rank-stale-norm" in listed and not missing, f"faults of no row: {missing}")


def judged_later(what, model, trace, place, says):
    done = subprocess.run([LOCKSTEP, "judge", trace, "--model", DATA / model, "--format", "json"],
                          capture_output=True, text=True)
    first = json.loads(done.stdout)["first"] if done.stdout else None
    check.that(done.returncode == 1 and first and (first["point"], first["layer"]) == place
               and says in first["rule"], f"{what} in a saved trace: {first} {done.stderr}")


met = []  # faults, in the order of their first rows


def takes_turn(fault):
    """Whether the mode tp is asked: of every third fault, in the first of its rows."""
    name = fault.partition("@")[0]
    if name in met:
        return False
    met.append(name)
    return len(met) % 3 == 1


with tempfile.TemporaryDirectory() as folder:
    for number, (fault, ranks, options, who, point, layer, words, mode_point,
                 more) in enumerate(CASES):
        model = more.get("model", TINY)
        trace = f"{folder}/{number}.trace"
        keep = ["--keep", "full", "--trace", trace] if "kept" in more else []
        for way, asked in (("the judge", keep), ("the mode tp", ["--modes", "tp"])):
            of_mode = way == "the mode tp"
            if of_mode and not WHOLE and not takes_turn(fault):
                continue
            what = f"{fault} {' '.join(options)}: {way}"
            result, status, err = run(model, "--tp", ranks, "--fault", fault, *options, *asked)
            first = result["first"] if result else None
            check.that(status == 1 and first is not None, f"{what}: status {status}, {err}")
            if not first:
                continue
            found = first["point"], first["layer"], first["rule"]
            said = words in found[2] or (of_mode and "tp the other" in found[2])
            check.that(found[:2] == (mode_point if of_mode else point, layer) and said,
                       f"{what}: {found}")
            if of_mode:
                if words.startswith("rank ") and mode_point == point:
                    check.that("rank" in found[2], f"{what} names no rank: {found}")
                continue
            sees = {seen_by(finding["rule"]) for finding in result["findings"]}
            check.that(sees == who, f"{what} is seen by {sees}")
            if "like" in more:
                causes = [cause["says"] for at in result["points"] for cause in at["looks_like"]]
                check.that(any(more["like"] in says for says in causes), f"{what}: like {causes}")
            # What rank 1 made of its stale norm is right, given what it read: no other is blamed.
            if "alone" in more:
                places = {(f["layer"], f["point"]) for f in result["findings"]}
                check.that(places == more["alone"], f"{what} blames {places}")
            if "kept" in more:
                judged_later(what, model, trace, (point, layer), more["kept"])

# So is its attention, where it has a copy of a K/V head that others have otherwise.
result, *_ = run("bard-qwen3", "--tp", 3, "--fault", "rank-stale-weight@layer=3")
places = {(f["layer"], f["point"]) for f in result["findings"]}
check.that(places == {(3, "attn.v")}, f"a stale v of rank 1 blames {places}")
rules = [finding["rule"] for finding in result["findings"]]
check.that(any("its own copy of head 0" in rule for rule in rules), f"a stale copy: {rules}")

result, status, err = run(TINY, "--fault", "rank-stale-norm")
check.that(status == 2 and "--tp" in err, f"a fault of ranks without ranks: {err}")
for options, says in ((["--fault", "rank-stale-norm@rank=2", "--tp", 2], "names rank"),
                      (["--fault", "rope-interleaved@rank=1"], "names rank"),
                      (["--fault", "rank-all-reduce-for-scatter", "--tp", 2],
                       "needs --sequence-parallel")):
    result, status, err = run(TINY, *options)
    check.that(status == 2 and says in err, f"{options}: {err}")
check.end(128 if WHOLE else 86)
