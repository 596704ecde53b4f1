"""Over any number of ranks that a model can be shared by, every node is right, and in fp32 the
tokens are those of one."""
import subprocess
import tempfile

from ranks import DATA, LOCKSTEP, Checks, run, tokens

check = Checks()
# Model, dtype, ranks. bard has 6 query heads over 2 K/V heads: of 3 ranks one reads both. The tiny
# ones have 4 over 1, 2 or 4, biases, untied heads, windows, experts.
CASES = [
    ("bard-qwen3", "fp32", 2), ("bard-qwen3", "fp32", 3), ("bard-qwen3", "bf16", 2),
    ("bard-qwen3", "fp16", 3), ("bard-qwen2.5", "fp32", 2), ("bard-qwen2.5", "bf16", 3),
    ("tiny/qwen3-bias-mqa", "fp32", 4), ("tiny/qwen3-bias-mqa", "bf16", 2),
    ("tiny/qwen2-mha", "fp16", 4), ("tiny/qwen2-sliding", "fp32", 2),
    ("tiny/qwen3-untied-sharded", "bf16", 4), ("tiny/qwen3-moe", "fp32", 2),
    ("tiny/qwen3-moe", "bf16", 4), ("tiny/qwen3-dynamic", "fp32", 2),
]
alone = {}
for model, dtype, ranks in CASES:
    what = f"{model} {dtype} --tp {ranks}"
    result, status, err = run(model, "--dtype", dtype, "--tp", ranks)
    check.that(status == 0 and result and result["verdict"] == "clean",
               f"{what}: {result['story'] if result else err}")
    if not result:
        continue
    nodes = result["nodes"]
    check.that(nodes["expected"] == nodes["judged"] > 0, f"{what}: {nodes}")
    points = {point["point"] for point in result["points"]}
    check.that({"embed.partial", "attn.o_partial"} <= points, f"{what}: shows {points}")
    if dtype == "fp32":
        alone.setdefault(model, run(model, "--dtype", dtype))
        check.that(tokens(result) == tokens(alone[model][0]), f"{what}: other tokens than of one")

# Chunks, small pages, prefix cache, preemption, sampling: the ranks stay alike.
result, status, err = run("bard-qwen3", "--tp", 2, "--chunk", 3, "--page-size", 4, "--pages", 5,
                          "--prefix-cache", "--temperature", 1, "--seed", 5)
check.that(status == 0, f"served otherwise: {result['story'] if result else err}")

# Against one of no ranks, op by op on equal inputs; other modes stay as they are.
for model, dtype, ranks in [("bard-qwen3", "fp32", 2), ("bard-qwen3", "bf16", 3),
                            ("bard-qwen2.5", "fp16", 2), ("tiny/qwen3-bias-mqa", "bf16", 4),
                            ("tiny/qwen3-moe", "bf16", 4), ("tiny/qwen3-dynamic", "fp32", 2)]:
    what = f"{model} {dtype} --tp {ranks} --modes tp"
    result, status, err = run(model, "--dtype", dtype, "--tp", ranks, "--modes", "tp")
    check.that(status == 0 and result and result["verdict"] == "clean",
               f"{what}: {result['story'] if result else err}")
    if not result:
        continue
    nodes = result["nodes"]
    check.that(nodes["expected"] == nodes["judged"] > 0, f"{what}: {nodes}")
    check.that(any(note.startswith("whole and tp: ") for note in result["notes"]), what)
    if (model, dtype) in [("bard-qwen3", "fp32"), ("tiny/qwen3-dynamic", "fp32")]:
        check.that(tokens(result) == tokens(alone[model][0]), f"{what}: other tokens than of one")
result, status, err = run("bard-qwen3", "--tp", 2, "--modes", "pages,tp")
compared = [note.partition(":")[0] for note in result["notes"]] if result else []
check.that(status == 0 and {"whole and pages", "whole and tp"} <= set(compared),
           f"two modes: {compared} {err}")
result, status, err = run("bard-qwen3", "--modes", "tp")
check.that(status == 2 and "add --tp 2" in err, f"the mode tp without ranks: {err}")

# A trace over ranks is judged as the run was, and differs from that of one rank by rounding alone.
with tempfile.TemporaryDirectory() as folder:
    shared, single = f"{folder}/shared.trace", f"{folder}/single.trace"
    keep = ["--dtype", "bf16", "--keep", "full", "--trace"]
    check.that(run("bard-qwen3", "--tp", 2, *keep, shared)[1] == 0, "a trace over ranks")
    check.that(run("bard-qwen3", *keep, single)[1] == 0, "a trace of one rank")
    for command in (["judge", shared, "--model", DATA / "bard-qwen3"], ["diff", single, shared],
                    ["diff", shared, single]):
        done = subprocess.run([LOCKSTEP, *command, "-q"], capture_output=True, text=True)
        last = done.stdout + done.stderr
        check.that(done.returncode == 0, f"{command[0]}: {last}")
        check.that(last.startswith("clean" if command[0] == "judge" else "noise"), last)

for model, ranks, says in [("bard-qwen3", 4, "6 query heads cannot be shared by 4 ranks"),
                           ("tiny/qwen3-default", 3, "4 query heads cannot be shared by 3 ranks")]:
    result, status, err = run(model, "--tp", ranks)
    check.that(status == 2 and says in err and err.count("\n") == 1, f"{model} {ranks}: {err}")
for options, says in [(["--modes", "pages"], "add the mode tp"), (["--confirm"], "--confirm"),
                      (["--determinism", "2"], "--determinism"), (["--device", "cuda"], "cuda"),
                      (["--error-budget"], "--error-budget"),
                      (["--executor", "instructions"], "--executor")]:
    result, status, err = run("bard-qwen3", "--tp", 2, *options)
    check.that(status == 2 and says in err.lower() and err.count("\n") == 1, f"{options}: {err}")
check.end(83)
