"""What capture of all points costs: generate with it and without, by turns, and the ratio.

python capture_cost.py [MODEL ...] [--pairs N] [--threads N]. The whole block is counted, with the
file that it leaves. Seconds of the processor (user and system, of all threads) are told beside
those of the wall, which are less where the thread that writes has a core of its own.
"""
from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time

import torch

import support
from support import load, tokens

import lockstep

PROMPT, NEW = 100, 32


def seconds(run):
    """Of the processor (user and system), and of the wall."""
    begin, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - begin, time.perf_counter() - wall


def pairs_of(model, folder, count):
    """Of each pair, the seconds without capture and with it."""
    ids, path = tokens(PROMPT, 1, model.config.vocab_size), pathlib.Path(folder) / "x.h5"

    def plain():
        model.generate(ids, do_sample=False, max_new_tokens=NEW)

    def captured():
        path.unlink(missing_ok=True)
        with lockstep.capture(model, path):
            plain()
    plain()
    captured()
    return [(seconds(plain), seconds(captured)) for _ in range(count)]


def report(name, pairs):
    """One line: medians, which one slow pair does not move."""
    parts = []
    for i, kind in enumerate(("processor", "wall")):
        without, with_it = ([pair[j][i] for pair in pairs] for j in (0, 1))
        ratio = statistics.median(b / a for a, b in zip(without, with_it))
        parts.append(f"{kind} {1e3 * statistics.median(without):.0f} -> "
                     f"{1e3 * statistics.median(with_it):.0f} ms, {ratio:.2f} x")
    return f"{name}: {PROMPT} + {NEW} tokens, {len(pairs)} pairs: " + "; ".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="*", default=[support.QWEN3])
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            for dtype in options.dtypes.split(","):
                name = f"{pathlib.Path(model).name} {dtype}"
                print(report(name, pairs_of(load(model, dtype), folder, options.pairs)), flush=True)


if __name__ == "__main__":
    main()
