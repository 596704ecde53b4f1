"""How the cost of judging grows: growth.py LOCKSTEP [--quick]. Prints a table in Markdown.

Four things grow, one at a time: the tokens of a prompt, the requests of a pass, the context of
tokens that are decoded, and the layers of a model. Each size is run several times, and the least
seconds of all threads and the least peak of resident memory count, as other work on the machine can
only add to them. What a run costs at size 0, by the line through the two smallest sizes, is taken
away; what is left is fitted by a power of the size: log cost over log size, least squares.
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/bard-qwen3"


def tokens(count, seed=0):
    return ",".join(str((i * 37 + 11 + 131 * seed) % 4000) for i in range(count))


def run_once(command):
    """Seconds of all threads, and the peak of resident memory in MB."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)[:200]} ended with {status}: {output[-400:].decode()}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def cost(command, repeats):
    runs = [run_once(command) for _ in range(repeats)]
    return min(seconds for seconds, _ in runs), min(memory for _, memory in runs)


def exponent(sizes, costs):
    """Of what is beyond the cost at size 0. None where nothing grows by more than a tenth."""
    slope = (costs[1] - costs[0]) / (sizes[1] - sizes[0])
    fixed = min(costs[0] - slope * sizes[0], 0.999 * min(costs))
    if max(costs) < 1.1 * costs[0]:
        return None
    points = [(math.log(s), math.log(c - fixed)) for s, c in zip(sizes, costs)]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return (sum((x - mean_x) * (y - mean_y) for x, y in points)
            / sum((x - mean_x) ** 2 for x, _ in points))


def layers_of(count, folder):
    """A model of so many layers, of random weights."""
    path = pathlib.Path(folder) / f"layers{count}"
    subprocess.run([sys.executable, str(ROOT / "tests/tools/synthetic_checkpoint.py"),
                    "qwen3-0.6b", str(path), "--layers", str(count), "--vocab", "4096"],
                   check=True, capture_output=True)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lockstep")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes, once each")
    parser.add_argument("--json", help="write the numbers here too")
    options = parser.parse_args()
    shrink = 4 if options.quick else 1
    repeats = 1 if options.quick else options.repeats

    def judge(*arguments, model=MODEL):
        return cost([options.lockstep, "run", "--model", str(model), "-q", *arguments], repeats)

    with tempfile.TemporaryDirectory() as folder:
        series = {
            "tokens of a prompt": [(n, lambda n: judge("--tokens", tokens(n), "-n", "1"))
                                   for n in (128, 256, 512, 1024)],
            "requests in a pass, 32 tokens each": [
                (n, lambda n: judge(*[word for r in range(n)
                                      for word in ("--tokens", tokens(32, r))], "-n", "1"))
                for n in (4, 8, 16, 32)],
            "context of 16 tokens that are decoded": [
                (n, lambda n: judge("--tokens", tokens(n), "-n", "17", "--positions",
                                    f"{n}-{n + 16}"))
                for n in (128, 256, 512, 1024)],
            "layers of the shape of Qwen3-0.6B, 32 tokens": [
                (n, lambda n: judge("--tokens", tokens(32), "-n", "1",
                                    model=layers_of(n, folder)))
                for n in (1, 2, 4, 8)],
        }
        print("| grows | sizes | seconds of all threads | exponent | peak of memory, MB | "
              "exponent |")
        print("|---|---|---|---|---|---|")
        found = {}
        for name, list_of in series.items():
            sizes = [max(1, size // shrink) for size, _ in list_of]
            sizes = sorted(set(sizes))
            if len(sizes) < 2:
                continue
            costs = [list_of[0][1](size) for size in sizes]
            fits = [exponent(sizes, [c[i] for c in costs]) for i in (0, 1)]
            found[name] = {"sizes": sizes, "seconds": [c[0] for c in costs],
                           "megabytes": [c[1] for c in costs], "exponents": fits}
            said = ["none" if fit is None else f"{fit:.2f}" for fit in fits]
            print(f"| {name} | {', '.join(map(str, sizes))} "
                  f"| {', '.join(f'{c[0]:.2f}' for c in costs)} | {said[0]} "
                  f"| {', '.join(f'{c[1]:.0f}' for c in costs)} | {said[1]} |", flush=True)
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
