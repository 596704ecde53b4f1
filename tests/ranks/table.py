"""Every model of the test data over 1 to 4 ranks, in three dtypes, beside the goldens: not among
the tests, for it takes minutes. `python table.py LOCKSTEP DATA [JOBS]` prints a table.

A cell is "ok": clean, every node judged, and in fp32 the tokens of the golden file, which Hugging
Face chose; "=" where the tokens of another dtype are those of one rank, "~" where one differs, as
rounding may have it; "-": refused, for the model's heads do not divide.
"""
import concurrent.futures
import json
import os
import sys

from ranks import DATA, run, tokens

JOBS = int(sys.argv[3]) if len(sys.argv) > 3 else os.cpu_count() // 2
WAYS = [(1, []), (2, []), (3, []), (4, []), (2, ["--sequence-parallel"]),
        (3, ["--sequence-parallel"]), (4, ["--sequence-parallel"])]


def golden_of(file, prefix):
    """Prompts and what Hugging Face chose after them in fp32, by the golden file's own names."""
    with open(DATA / "golden" / f"{file}.safetensors", "rb") as golden:
        header = json.loads(golden.read(int.from_bytes(golden.read(8), "little")))
        start = golden.tell()

        def ids(name):
            first, end = header[name]["data_offsets"]
            golden.seek(start + first)
            count = 1
            for extent in header[name]["shape"]:
                count *= extent
            size = (end - first) // count
            data = golden.read(end - first)
            return [int.from_bytes(data[i:i + size], "little") for i in range(0, len(data), size)]

        names = sorted({key.rpartition("/")[0] for key in header
                        if key.startswith(f"{prefix}float32/") and key.endswith("/greedy_ids")})
        return [(ids(f"{name}/prompt_ids"), ids(f"{name}/greedy_ids")) for name in names]


def cell(model, golden, dtype, ranks, options):
    """What became of it, and the tokens; an empty list where it is refused."""
    prompts = [part for ids, _ in golden for part in ("--tokens", ",".join(map(str, ids)))]
    asked = ["--tp", ranks, *options] if ranks > 1 else []
    result, status, err = run(model, "--dtype", dtype, "--threads", 1, *asked, prompts=prompts,
                              max_new=len(golden[0][1]))
    if status == 2 and "cannot be shared" in err and err.count("\n") == 1:
        return "-", []
    if status != 0 or result["nodes"]["judged"] != result["nodes"]["expected"]:
        return f"FAILED {result['story'] if result else err}", []
    chosen = [ids[-len(golden[0][1]):] for ids in tokens(result)]
    if dtype == "fp32" and chosen != [ids for _, ids in golden]:
        return f"FAILED tokens {chosen}", chosen
    return "ok", chosen


models = [(f"bard-{name}", f"bard-{name}", "") for name in ("qwen3", "qwen2.5")]
models += [(f"tiny/{path.name}", "tiny", f"{path.name}/")
           for path in sorted((DATA / "tiny").iterdir())
           if path.is_dir()]
jobs = {}
with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
    for model, file, prefix in models:
        golden = golden_of(file, prefix)
        for dtype in ("fp32", "bf16", "fp16"):
            for way, (ranks, options) in enumerate(WAYS):
                jobs[model, dtype, way] = pool.submit(cell, model, golden, dtype, ranks, options)
print("| model | dtype |", " | ".join(f"{ranks}{' rows' if options else ''}"
                                      for ranks, options in WAYS), "|")
print("|---|---|" + "---|" * len(WAYS))
failed = judged = 0
for model, *_ in models:
    for dtype in ("fp32", "bf16", "fp16"):
        alone = jobs[model, dtype, 0].result()[1]
        cells = []
        for way in range(len(WAYS)):
            says, chosen = jobs[model, dtype, way].result()
            failed += says.startswith("FAILED")
            judged += says == "ok"
            other = "" if dtype == "fp32" or not chosen else " =" if chosen == alone else " ~"
            cells.append(says + other)
        print(f"| {model} | {dtype} |", " | ".join(cells), "|")
print(f"{judged} runs clean, {failed} failed")
sys.exit(1 if failed or judged == 0 else 0)
