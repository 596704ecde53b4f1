"""Random schedules over ranks, each judged, as many as asked for: not among the tests, for it takes
minutes. `python many_schedules.py LOCKSTEP DATA [COUNT] [RANKS] [JOBS] [FIRST]`.

Requests, chunks, pages, dtypes and sampling are drawn from the seed of each schedule, which a
failure names.
"""
import concurrent.futures
import os
import random
import subprocess
import sys

from ranks import run

count = int(sys.argv[3]) if len(sys.argv) > 3 else 200
ranks = int(sys.argv[4]) if len(sys.argv) > 4 else 2
jobs = int(sys.argv[5]) if len(sys.argv) > 5 else max(1, os.cpu_count() // ranks)
first = int(sys.argv[6]) if len(sys.argv) > 6 else 1
MODELS = ["bard-qwen3", "bard-qwen2.5", "tiny/qwen3-bias-mqa", "tiny/qwen3-moe",
          "tiny/qwen2-sliding"]


def drawn(seed):
    """A model and options of a schedule."""
    draw = random.Random(seed)
    model = draw.choice(MODELS)
    prompts = []
    for _ in range(draw.randint(1, 4)):
        tokens = [str(draw.randrange(3, 300)) for _ in range(draw.randint(1, 30))]
        prompts += ["--tokens", ",".join(tokens)]
    options = ["--schedule", seed, "--dtype", draw.choice(["fp32", "bf16", "fp16"]),
               "--page-size", draw.choice([1, 4, 16]), "--chunk", draw.choice([0, 1, 3, 7]),
               "--page-order", draw.choice([0, 3, 211]), "--threads", 1]
    if draw.random() < 0.4:
        options += ["--prefix-cache"]
    if draw.random() < 0.3:
        options += ["--preempt", "swap"]
    if draw.random() < 0.3:
        options += ["--sequence-parallel"]
    if draw.random() < 0.4:
        options += ["--temperature", 1, "--seed", seed]
    return model, options, prompts, draw.randint(1, 8)


def judged(seed):
    """What is wrong with a schedule; "": it is clean, and all of it was judged."""
    model, options, prompts, max_new = drawn(seed)
    try:
        result, status, err = run(model, "--tp", ranks, *options, prompts=prompts, max_new=max_new)
    except subprocess.TimeoutExpired as error:
        result, status, err = None, 2, str(error)
    nodes = result["nodes"] if result else {}
    if status == 0 and nodes["judged"] == nodes["expected"] > 0:
        return ""
    return f"FAILED: schedule {seed}: {model} {options}: {result['story'] if result else err}"


failed = 0
with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    for done, text in enumerate(pool.map(judged, range(first, first + count)), 1):
        failed += text != ""
        if text or done % 20 == 0:
            print(text or f"{done} schedules", flush=True)
print(f"{count} schedules over {ranks} ranks, {failed} failed")
sys.exit(1 if failed or count == 0 else 0)
