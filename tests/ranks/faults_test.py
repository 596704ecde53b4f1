"""Each bug of how ranks share a model is seen where it is, by whom it must be seen, and names the
rank."""
import json
import subprocess
import tempfile

from ranks import DATA, LOCKSTEP, Checks, run

check = Checks()
# Fault, its model, ranks, the place of the first finding of the judge (with what watches the ranks:
# their copies and their calls), words of its rule, and the point of the first finding where the
# model over ranks is compared with one over none (--modes tp). That has no place of its own for
# what a rank adds, and sees it in the sum.
CASES = [
    ("rank-reduce-left-out@layer=1", "bard-qwen3", 2, "attn.o", 1, "", "attn.o"),
    ("rank-reduce-left-out-by-one@layer=1", "bard-qwen3", 2, "attn.o", 1,
     "rank 1 calls the all-reduce of layer 1 mlp.down", "attn.o"),
    ("rank-bias-added-by-each", "tiny/qwen3-bias-mqa", 2, "attn.o_partial", 0, "rank 1", "attn.o"),
    ("rank-rows-of-another", "bard-qwen3", 2, "mlp.gate", 0, "rank 1", "mlp.gate"),
    ("rank-kv-heads-dealt", "tiny/qwen3-default", 4, "attn.k", 0, "rank 1", "attn.k"),
    ("rank-vocabulary-off-by-one", "bard-qwen3", 2, "embed.partial", None, "rank", "embed"),
    ("rank-logits-reversed", "bard-qwen3", 2, "logits", None, "rank", "logits"),
    ("rank-stale-norm@layer=2", "bard-qwen3", 2, "attn.norm", 2,
     "rank 1 leaves rank 0 at layer 2 attn.norm", "attn.norm"),
    ("rank-stale-norm@layer=2,rank=0", "bard-qwen3", 2, "attn.norm", 2, "rank 1 leaves rank 0",
     "attn.norm"),
    ("rank-stale-weight@layer=3", "bard-qwen3", 2, "attn.v", 3, "rank 1", "attn.v"),
    ("rank-stale-weight@layer=3,rank=0", "bard-qwen3", 2, "attn.v", 3, "rank 0", "attn.v"),
    ("rank-norm-of-shard@layer=0", "bard-qwen3", 2, "mlp.norm", 0, "", "mlp.norm"),
    ("rank-other-dtype", "bard-qwen3", 2, "embed", None, "fp32 where rank 0 calls", "embed"),
    ("rank-other-slots", "bard-qwen3", 2, "attn.kv", 0, "rank 1", "attn.kv"),
    ("rank-other-token", "bard-qwen3", 2, "embed.partial", None, "rank 1 leaves rank 0 in what it",
     "embed.partial"),
    # A bug of an op, in one rank alone.
    ("rope-interleaved@layer=3,rank=1", "bard-qwen3", 2, "attn.q_rope", 3, "rank 1",
     "attn.q_rope"),
]
for fault, model, ranks, point, layer, words, mode_point in CASES:
    for who, options in (("the judge", []), ("the mode tp", ["--modes", "tp"])):
        result, status, err = run(model, "--tp", ranks, "--fault", fault, *options)
        first = result["first"] if result else None
        check.that(status == 1 and first is not None, f"{fault}: {who}: status {status}, {err}")
        if not first:
            continue
        found = first["point"], first["layer"], first["rule"]
        wanted = mode_point if options else point
        said = words in found[2] or (options and "tp the other" in found[2])
        check.that(found[:2] == (wanted, layer) and said, f"{fault}: {who}: {found}")
        if options and words.startswith("rank ") and mode_point == point:
            check.that("rank" in found[2], f"{fault}: {who} names no rank: {found}")

# What rank 1 made of its stale norm is right, given what it read: no other op is blamed.
result, *_ = run("bard-qwen3", "--tp", 2, "--fault", "rank-stale-norm@layer=2")
places = {(f["layer"], f["point"]) for f in result["findings"]}
check.that(places == {(2, "attn.norm")}, f"a stale norm of rank 1 blames {places}")

# So is its attention, where it has a copy of a K/V head that others have otherwise.
result, *_ = run("bard-qwen3", "--tp", 3, "--fault", "rank-stale-weight@layer=3")
places = {(f["layer"], f["point"]) for f in result["findings"]}
check.that(places == {(3, "attn.v")}, f"a stale v of rank 1 blames {places}")
rules = [finding["rule"] for finding in result["findings"]]
check.that(any("its own copy of head 0" in rule for rule in rules), f"a stale copy: {rules}")

# One rank's way to go wrong is named with the rank; a sum over ranks and what they gather have
# ways of their own.
for fault, says in [("rope-interleaved@layer=3,rank=1", "in rank 1"),
                    ("rope-interleaved@layer=3", "RoPE"),
                    ("rank-reduce-left-out@layer=1", "what rank 0 adds, and no other rank's"),
                    ("rank-logits-reversed", "the ranks' parts in reversed order")]:
    result, *_ = run("bard-qwen3", "--tp", 2, "--fault", fault)
    causes = [cause["says"] for place in result["points"] for cause in place["looks_like"]]
    check.that(any(says in cause for cause in causes), f"{fault}: looks like {causes}")

# A trace has one copy of what all ranks have, and still shows that they had others.
with tempfile.TemporaryDirectory() as folder:
    for fault, place, says in [
            ("rank-stale-norm@layer=2", ("attn.norm", 2), "rank 1 leaves rank 0 at layer 2"),
            ("rank-other-slots", ("attn.kv", 0), "rank 1"),
            ("rank-other-token", ("embed.partial", None), "rank 1 leaves rank 0 in what it")]:
        trace = f"{folder}/{fault.partition('@')[0]}.trace"
        run("bard-qwen3", "--tp", 2, "--fault", fault, "--keep", "full", "--trace", trace)
        done = subprocess.run([LOCKSTEP, "judge", trace, "--model", DATA / "bard-qwen3", "--format",
                               "json"], capture_output=True, text=True)
        first = json.loads(done.stdout)["first"] if done.stdout else None
        check.that(done.returncode == 1 and first and (first["point"], first["layer"]) == place
                   and says in first["rule"], f"{fault} in a saved trace: {first} {done.stderr}")

result, status, err = run("bard-qwen3", "--fault", "rank-stale-norm")
check.that(status == 2 and "--tp" in err, f"a fault of ranks without ranks: {err}")
for options in (["--fault", "rank-stale-norm@rank=2", "--tp", 2],
                ["--fault", "rope-interleaved@rank=1"]):
    result, status, err = run("bard-qwen3", *options)
    check.that(status == 2 and "names rank" in err, f"{options}: {err}")
check.end(83)
