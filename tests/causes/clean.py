"""Clean runs in which nothing may be found, and no cause be said.

clean.py LOCKSTEP MODELS [--runs 300] [--seed 1] [--which A,B] [--jobs N] [--seconds N]

Draws a model, a dtype, requests and how they are served for each run, and prints how many runs,
findings and causes there were. Exit status: 0 where there is neither a finding nor a cause.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import table

TINY = ("qwen2-default", "qwen2-mha", "qwen2-sliding", "qwen3-bias-mqa", "qwen3-default",
        "qwen3-dynamic", "qwen3-linear", "qwen3-llama3", "qwen3-moe", "qwen3-untied-sharded",
        "qwen3-yarn")
# Runs of a tiny model take a third of a second, these a few: one run in eight.
LARGE = ("bard-qwen3", "bard-qwen2.5")
MOST_LENGTH = 60  # of a prompt; some begin alike, so that a prefix is shared


def requests_of(draw, vocabulary):
    prefix = [draw.randrange(1, vocabulary) for _ in range(draw.choice((0, 16, 33)))]
    for _ in range(draw.randint(1, 4)):
        rest = [draw.randrange(1, vocabulary) for _ in range(draw.randint(1, MOST_LENGTH))]
        yield {"tokens": prefix + rest, "max_new": draw.randint(1, 6)}


def serving_of(draw, model):
    more = ["--dtype", draw.choice(("bf16", "fp32", "fp16")),
            "--page-size", str(draw.choice((4, 8, 16, 32))), "--page-order", str(draw.randrange(9)),
            "--chunk", str(draw.choice((0, 0, 5, 16, 31))), "--threads", str(draw.choice((1, 2))),
            "--max-batch", str(draw.choice((0, 0, 1, 2)))]
    if draw.random() < 0.3 and model != "tiny/qwen3-dynamic":
        more.append("--prefix-cache")
    if draw.random() < 0.3:
        more += ["--schedule", str(draw.randrange(1, 99))]
    return more


def judged(binary, path, requests, more, out):
    command = [binary, "run", "--model", str(path), "--requests", str(requests), "--ignore-eos",
               "--quiet", "--json", str(out), *more]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if not out.exists():
        raise SystemExit(f"{' '.join(command)}: {ran.stderr.strip()}")
    return json.loads(out.read_text())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--which", default="", help="models to draw from (all)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seconds", type=int, default=0, help="begin no run after so many")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    findings = causes = nodes = runs = 0
    began = time.monotonic()
    cases = []
    for number in range(options.runs):
        large = draw.random() < 1 / 8
        model = draw.choice(options.which.split(",") if options.which else
                            LARGE if large else [f"tiny/{name}" for name in TINY])
        config = json.loads((options.models / model / "config.json").read_text())
        cases.append((number, model, list(requests_of(draw, config["vocab_size"])),
                      serving_of(draw, model)))

    def work(case):
        _, model, asked, more = case
        with tempfile.TemporaryDirectory() as folder:
            requests = pathlib.Path(folder, "requests.jsonl")
            requests.write_text("".join(json.dumps(r) + "\n" for r in asked))
            return case, judged(options.binary, options.models / model, requests, more,
                                pathlib.Path(folder, "result.json"))

    for (number, model, _, more), result in table.as_done(options, work, cases):
        said = [like["says"] for place in result["points"] for like in place["looks_like"]]
        findings += len(result["findings"])
        causes += len(said)
        runs += 1
        nodes += result["nodes"]["judged"]
        if said or result["findings"] or result["verdict"] != "clean":
            print(f"run {number}: {model} {' '.join(more)}: {result['story']} {said}", flush=True)
    print(f"{runs} runs, {nodes} nodes, {findings} findings, {causes} causes said "
          f"({time.monotonic() - began:.0f} s)")
    return 1 if findings or causes else 0


if __name__ == "__main__":
    sys.exit(main())
