"""Each bug of how ranks share a model is seen where it is, by whom it must be seen, and names the
rank."""
import json
import subprocess
import tempfile

from ranks import DATA, LOCKSTEP, Checks, run

check = Checks()
TINY, ROWS = "tiny/qwen3-default", ["--sequence-parallel"]
# Fault, ranks, options, the place of the first finding of the judge (with what watches the ranks:
# their copies and their calls), words of its rule, and the point of the first finding where the
# model over ranks is compared with one over none (--modes tp). That has no place of its own for
# what a rank adds, and sees it in the sum. Last: the same of a saved trace, which has one copy of
# what all ranks have, and still shows that they had others; and what the finding looks like.
CASES = [
    ("rank-reduce-left-out@layer=1", 2, [], "attn.o", 1, "", "attn.o",
     {"like": "what rank 0 adds, and no other rank's"}),
    ("rank-reduce-left-out@layer=1", 2, ROWS, "attn.o", 1, "rank", "attn.o", {}),
    ("rank-reduce-left-out-by-one@layer=1", 2, [], "attn.o", 1,
     "rank 1 calls the all-reduce of layer 1 mlp.down", "attn.o", {}),
    ("rank-all-reduce-for-scatter@layer=1", 2, ROWS, "attn.o", 1, "rank 1", "attn.o", {}),
    ("rank-all-reduce-for-scatter@layer=1,rank=1", 2, ROWS, "attn.o", 1,
     "rank 1 calls the all-reduce of layer 1 attn.o", "attn.o", {}),
    ("rank-bias-added-by-each", 2, [], "attn.o_partial", 0, "rank 1", "attn.o",
     {"model": "tiny/qwen3-bias-mqa"}),
    ("rank-rows-of-another", 2, [], "mlp.gate", 0, "rank 1", "mlp.gate", {}),
    ("rank-kv-heads-dealt", 4, [], "attn.k", 0, "rank 1", "attn.k", {}),
    ("rank-vocabulary-off-by-one", 2, [], "embed.partial", None, "rank", "embed", {}),
    ("rank-logits-reversed", 2, [], "logits", None, "rank", "logits",
     {"like": "the ranks' parts in reversed order"}),
    ("rank-stale-norm@layer=2", 2, [], "attn.norm", 2,
     "rank 1 leaves rank 0 at layer 2 attn.norm", "attn.norm",
     {"kept": "rank 1 leaves rank 0 at layer 2", "alone": {(2, "attn.norm")}}),
    ("rank-stale-norm@layer=2,rank=0", 2, [], "attn.norm", 2, "rank 1 leaves rank 0", "attn.norm",
     {}),
    ("rank-stale-norm@layer=2", 2, ROWS, "attn.norm", 2, "rank 1", "attn.norm",
     {"kept": "rank 1"}),
    ("rank-stale-weight@layer=1", 2, [], "attn.v", 1, "rank 1", "attn.v", {}),
    ("rank-stale-weight@layer=1,rank=0", 2, [], "attn.v", 1, "rank 0", "attn.v", {}),
    ("rank-norm-of-shard@layer=0", 2, [], "mlp.norm", 0, "", "mlp.norm", {}),
    ("rank-norm-of-shard@layer=0", 2, ROWS, "mlp.norm", 0, "rank", "mlp.norm", {}),
    ("rank-other-dtype", 2, [], "embed", None, "fp32 where rank 0 calls", "embed", {}),
    ("rank-other-slots", 2, [], "attn.kv", 0, "rank 1", "attn.kv", {"kept": "rank 1"}),
    ("rank-other-token", 2, [], "embed.partial", None, "rank 1 leaves rank 0 in what it",
     "embed.partial", {"kept": "rank 1 leaves rank 0 in what it"}),
    # A bug of an op, in one rank alone.
    ("rope-interleaved@layer=1,rank=1", 2, [], "attn.q_rope", 1, "rank 1", "attn.q_rope",
     {"like": "in rank 1"}),
]


def judged_later(what, model, trace, place, says):
    done = subprocess.run([LOCKSTEP, "judge", trace, "--model", DATA / model, "--format", "json"],
                          capture_output=True, text=True)
    first = json.loads(done.stdout)["first"] if done.stdout else None
    check.that(done.returncode == 1 and first and (first["point"], first["layer"]) == place
               and says in first["rule"], f"{what} in a saved trace: {first} {done.stderr}")


with tempfile.TemporaryDirectory() as folder:
    for number, (fault, ranks, options, point, layer, words, mode_point, more) in enumerate(CASES):
        model = more.get("model", TINY)
        trace = f"{folder}/{number}.trace"
        keep = ["--keep", "full", "--trace", trace] if "kept" in more else []
        for who, asked in (("the judge", keep), ("the mode tp", ["--modes", "tp"])):
            of_mode = who == "the mode tp"
            what = f"{fault} {' '.join(options)}: {who}"
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
check.end(100)
