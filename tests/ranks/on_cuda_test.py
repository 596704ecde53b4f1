"""Two ranks on two CUDA devices: decode passes replayed from graphs, with NCCL's calls in them,
give what they give op by op, and what one device gives."""
import sys

from ranks import Checks, run, tokens

check = Checks()
PROMPTS = ["--tokens", "5,17,300,2,31,90,44", "--tokens", "7,8", "--tokens", "9,4,12"]


def served(model, *options):
    return run(model, "--device", "cuda", *options, prompts=PROMPTS, max_new=6)


def replays(result):
    """Passes that were replayed, as rank 0 says."""
    said = [note for note in result["notes"] if "replayed from CUDA graphs" in note]
    return int(said[0].split()[0]) if said else 0


_, status, err = served("bard-qwen3", "--tp", 2)
if status == 2 and ("CUDA devices" in err or "CUDA" in err and "build" in err):
    print("this machine has no two CUDA devices that work:", err)
    sys.exit(0)
# Three requests pad a graph for four, but where ranks share the rows of a pass.
for model, dtype, options in [
        ("bard-qwen3", "fp32", []), ("bard-qwen2.5", "bf16", ["--sequence-parallel"]),
        ("tiny/qwen3-moe", "fp16", []),
        ("bard-qwen2.5", "bf16", ["--chunk", 3, "--page-size", 4, "--prefix-cache", "--pages", 8,
                                  "--preempt", "swap"]),
        ("bard-qwen3", "bf16", ["--temperature", 1, "--seed", 5])]:
    what = f"{model} {dtype} {' '.join(map(str, options))}"
    both = [served(model, "--dtype", dtype, "--tp", 2, "--graph", graph, *options)
            for graph in ("off", "on")]
    for name, (result, status, err) in zip(("op by op", "graphs"), both):
        check.clean(f"{what} {name}", result, status, err)
    off, on = (result for result, *_ in both)
    if not (off and on):
        continue
    check.that(replays(off) == 0 < replays(on), f"{what}: {off['notes']} {on['notes']}")
    check.that(tokens(off) == tokens(on), f"{what}: {tokens(off)} {tokens(on)}")
    check.that(off["nodes"] == on["nodes"], f"{what}: {off['nodes']} {on['nodes']}")
    if dtype == "fp32":
        one, *_ = served(model, "--dtype", dtype)
        check.that(tokens(one) == tokens(on), f"{what}: other tokens than of one device")
result, status, err = served("bard-qwen3", "--tp", 2, "--fault", "graph-replays-stale-positions")
first = result["first"] if result else None
check.that(status == 1 and first and first["point"] == "rope.cos", f"stale: {first} {err}")
check.end(30)
