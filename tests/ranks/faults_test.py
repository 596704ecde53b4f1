"""Each bug of how ranks share a model is seen where it is, by whom it must be seen, and names the
rank."""
from ranks import Checks, run

check = Checks()
# Fault, its model, ranks, the place of the first finding, and words of its rule.
CASES = [
    ("rank-reduce-left-out@layer=1", "bard-qwen3", 2, "attn.o", 1, ""),
    ("rank-reduce-left-out-by-one@layer=1", "bard-qwen3", 2, "attn.o", 1,
     "rank 1 calls the all-reduce of layer 1 mlp.down"),
    ("rank-bias-added-by-each", "tiny/qwen3-bias-mqa", 2, "attn.o_partial", 0, "rank 1"),
    ("rank-rows-of-another", "bard-qwen3", 2, "mlp.gate", 0, "rank 1"),
    ("rank-kv-heads-dealt", "tiny/qwen3-default", 4, "attn.k", 0, "rank 1"),
    ("rank-vocabulary-off-by-one", "bard-qwen3", 2, "embed.partial", None, "rank"),
    ("rank-logits-reversed", "bard-qwen3", 2, "logits", None, "rank"),
    ("rank-stale-norm@layer=2", "bard-qwen3", 2, "attn.norm", 2,
     "rank 1 leaves rank 0 at layer 2 attn.norm"),
    ("rank-stale-norm@layer=2,rank=0", "bard-qwen3", 2, "attn.norm", 2, "rank 1 leaves rank 0"),
    ("rank-stale-weight@layer=3", "bard-qwen3", 2, "attn.v", 3, "rank 1"),
    ("rank-stale-weight@layer=3,rank=0", "bard-qwen3", 2, "attn.v", 3, "rank 0"),
    ("rank-norm-of-shard@layer=0", "bard-qwen3", 2, "mlp.norm", 0, ""),
    ("rank-other-dtype", "bard-qwen3", 2, "embed", None, "fp32 where rank 0 calls"),
    ("rank-other-slots", "bard-qwen3", 2, "attn.kv", 0, ""),
    ("rank-other-token", "bard-qwen3", 2, "embed.partial", None, "rank 1 leaves rank 0 in what it"),
    # A bug of an op, in one rank alone.
    ("rope-interleaved@layer=3,rank=1", "bard-qwen3", 2, "attn.q_rope", 3, "rank 1"),
]
for fault, model, ranks, point, layer, words in CASES:
    result, status, err = run(model, "--tp", ranks, "--fault", fault)
    first = result["first"] if result else None
    check.that(status == 1 and first is not None, f"{fault}: status {status}, {err}")
    if not first:
        continue
    found = first["point"], first["layer"], first["rule"]
    check.that(found[:2] == (point, layer) and words in found[2], f"{fault}: {found}")

# What rank 1 made of its stale norm is right, given what it read: no other op is blamed.
result, *_ = run("bard-qwen3", "--tp", 2, "--fault", "rank-stale-norm@layer=2")
places = {(f["layer"], f["point"]) for f in result["findings"]}
check.that(places == {(2, "attn.norm")}, f"a stale norm of rank 1 blames {places}")

# So is its attention, where it has a copy of a K/V head that others have otherwise.
result, *_ = run("bard-qwen3", "--tp", 3, "--fault", "rank-stale-weight@layer=3")
places = {(f["layer"], f["point"]) for f in result["findings"]}
check.that(places == {(3, "attn.v"), (3, "attn.kv")}, f"a stale v of rank 1 blames {places}")

result, status, err = run("bard-qwen3", "--fault", "rank-stale-norm")
check.that(status == 2 and "--tp" in err, f"a fault of ranks without ranks: {err}")
for options in (["--fault", "rank-stale-norm@rank=2", "--tp", 2],
                ["--fault", "rope-interleaved@rank=1"]):
    result, status, err = run("bard-qwen3", *options)
    check.that(status == 2 and "names rank" in err, f"{options}: {err}")
check.end(35)
