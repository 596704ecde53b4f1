"""Over any number of ranks that a model can be shared by, every node is right, and in fp32 the
tokens are those of one. `table.py` has all models, dtypes and numbers of ranks."""
import subprocess
import tempfile

from ranks import DATA, LOCKSTEP, Checks, run, tokens, write_model

check = Checks()
# Model, dtype, ranks, and options. bard has 6 query heads over 2 K/V heads: of 3 ranks one reads
# both. The tiny ones have 4 over 1, 2 or 4, biases, untied heads, windows, experts.
ROWS = ["--sequence-parallel"]
CASES = [
    ("bard-qwen3", "bf16", 3, []), ("bard-qwen2.5", "fp32", 2, ROWS),
    ("tiny/qwen3-bias-mqa", "fp32", 4, []), ("tiny/qwen2-mha", "fp16", 4, ROWS),
    ("tiny/qwen2-sliding", "fp32", 2, []), ("tiny/qwen3-untied-sharded", "bf16", 4, ROWS),
    ("tiny/qwen3-moe", "fp32", 2, ROWS), ("tiny/qwen3-moe", "bf16", 4, []),
]
for model, dtype, ranks, options in CASES:
    what = f"{model} {dtype} --tp {ranks} {' '.join(options)}"
    result, status, err = run(model, "--dtype", dtype, "--tp", ranks, *options)
    check.clean(what, result, status, err)
    if not result:
        continue
    points = {point["point"] for point in result["points"]}
    check.that({"embed.partial", "attn.o_partial"} <= points, f"{what}: shows {points}")
    if dtype == "fp32":
        alone, *_ = run(model, "--dtype", dtype, "--modes", "threads")
        check.that(tokens(result) == tokens(alone), f"{what}: other tokens than of one")

# As many ranks as there are heads, on however few cores.
with tempfile.TemporaryDirectory() as folder:
    write_model(folder, heads=8, kv_heads=2)
    check.clean("8 ranks", *run(folder, "--tp", 8, "--threads", 1, max_new=2))

# Chunks, small pages, prefix cache, preemption, sampling: the ranks stay alike. Passes of one token
# leave most ranks without a row where they share the stream by rows.
for options in ([], ROWS):
    check.clean("served otherwise", *run(
        "tiny/qwen3-default", "--tp", 4 if options else 2, "--chunk", 3, "--page-size", 4,
        "--pages", 5, "--prefix-cache", "--temperature", 1, "--seed", 5, *options))

# Against one of no ranks, op by op on equal inputs; other modes stay as they are.
for model, dtype, ranks, options in [
        ("bard-qwen3", "fp32", 2, []), ("tiny/qwen2-mha", "fp16", 2, ROWS),
        ("tiny/qwen3-bias-mqa", "bf16", 4, []), ("tiny/qwen3-moe", "bf16", 4, ROWS),
        ("tiny/qwen3-dynamic", "fp32", 2, [])]:
    what = f"{model} {dtype} --tp {ranks} {' '.join(options)} --modes tp"
    result, status, err = run(model, "--dtype", dtype, "--tp", ranks, "--modes",
                              "pages,tp" if dtype == "fp16" else "tp", *options)
    check.clean(what, result, status, err)
    compared = {note.partition(":")[0] for note in result["notes"]} if result else set()
    check.that({"whole and tp"} | ({"whole and pages"} if dtype == "fp16" else set()) <= compared,
               f"{what}: {compared}")
result, status, err = run("bard-qwen3", "--modes", "tp")
check.that(status == 2 and "add --tp 2" in err, f"the mode tp without ranks: {err}")

# A trace over ranks is judged as the run was, and differs from that of one rank by rounding alone.
with tempfile.TemporaryDirectory() as folder:
    shared, single = f"{folder}/shared.trace", f"{folder}/single.trace"
    model, keep = "tiny/qwen3-default", ["--dtype", "bf16", "--keep", "full", "--trace"]
    check.that(run(model, "--tp", 2, *ROWS, *keep, shared)[1] == 0, "a trace over ranks")
    check.that(run(model, *keep, single)[1] == 0, "a trace of one rank")
    for command in (["judge", shared, "--model", DATA / model], ["diff", single, shared],
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
result, status, err = run("bard-qwen3", *ROWS)
check.that(status == 2 and "--tp" in err and err.count("\n") == 1, f"rows without ranks: {err}")
check.end(67)
