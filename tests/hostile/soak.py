"""Serves very many requests in one process, with a pool that is too small for them.

python soak.py --lockstep BIN --data tests/data [--whole] [--only generate,run,repeats,threads]

Requests share beginnings (prefix cache), have several samples (forks), end at stop texts, and wait
for each other's pages (preemption). Memory must stay flat once the first are through, every request
must get the tokens that it gets alone, and equal runs must have equal bits.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import pty
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

OPENINGS = ["To be, or not to be, that is the question", "Now is the winter of our discontent",
            "Friends, Romans, countrymen, lend me your ears", "If music be the food of love",
            "Shall I compare thee to a summer's day?"]
WORDS = "the king and my lord shall not be with thee in love of this day or night".split()
SERVED = ["--dtype", "fp32", "--pages", "40", "--page-size", "4", "--max-batch", "8", "--chunk",
          "7", "--budget", "48", "--prefix-cache", "--ignore-eos"]
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive",
               "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# MB that memory may grow by from a tenth of the requests on: the requests' own texts are read at
# the beginning, and what they came to is kept for the end.
MOST_GROWTH_PER_1000 = 0.5
# MB from three to nine tenths of 2,000 judged requests. What the judge knows of each until the
# end (its tokens, what it was fed and chose, how sure that was) is 1.5 kB; who wrote the last
# 16,384 rows of K and V that are gone, where errors lie in the first 16,384 rows, and which rows of
# a place were seen reach their bounds on the way (6 MB); and memory is taken by huge pages of 2 MB,
# of which those that are free in part are not given back.
MOST_GROWTH_OF_JUDGED = 12


def requests(count: int, seed: int) -> list[dict]:
    rng = random.Random(seed)
    made = []
    for i in range(count):
        prompt = rng.choice(OPENINGS)[:rng.randint(4, 40)] + " " + \
            " ".join(rng.choices(WORDS, k=rng.randint(0, 5)))
        one = {"id": f"r{i}", "prompt": prompt, "max_new": rng.randint(1, 8)}
        if rng.random() < 0.3:
            one["stop"] = [rng.choice(["the", " I", "\n", "e,"])]
        if rng.random() < 0.3:
            one |= {"temperature": rng.choice([0.7, 1.0]), "seed": rng.randint(0, 1 << 30),
                    "top_k": rng.choice([0, 5])}
        if rng.random() < 0.1:
            one["n"] = rng.randint(2, 3)
        made.append(one)
    return made


def file_of(folder: Path, name: str, made: list[dict]) -> str:
    path = folder / name
    path.write_text("".join(json.dumps(one) + "\n" for one in made))
    return str(path)


def resident_mb(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(words[1]) * os.sysconf("SC_PAGESIZE") / 1e6 if words else 0


def generate(lockstep: Path, model: str, path: str, more: list[str],
             every: int = 0) -> tuple[list[dict], list[tuple[int, float]]]:
    """What each request came to, and memory after each `every` of them."""
    process = subprocess.Popen([lockstep, "generate", "-m", model, "--requests", path, "--format",
                                "json", *more], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    answers, curve = [], []
    for line in process.stdout:
        answers.append(json.loads(line))
        if every and len(answers) % every == 0:
            curve.append((len(answers), resident_mb(process.pid)))
    if process.wait() != 0:
        raise SystemExit(f"generate ended with {process.returncode}")
    return answers, curve


def shown_on(terminal: int) -> str:
    """What was written to a terminal since; "" when nobody has its other end open."""
    try:
        return os.read(terminal, 1 << 16).decode(errors="replace")
    except OSError:  # so Linux says the end
        return ""


def key_of(answer: dict) -> tuple[int, int]:
    return answer["request"], answer["sample"]


def trouble_of_curve(curve: list[tuple[int, float]]) -> str:
    """The least squares' slope of what follows the first tenth."""
    warm = curve[max(1, len(curve) // 10):]
    if len(warm) < 3:
        return ""
    n = len(warm)
    xs, ys = [x / 1000 for x, _ in warm], [y for _, y in warm]
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / \
        sum((x - mean_x) ** 2 for x in xs)
    print(f"  slope {slope:+.3f} MB a 1000 requests")
    return f"memory grows by {slope:.2f} MB a 1000 requests" if slope > MOST_GROWTH_PER_1000 else ""


class Soak:
    def __init__(self, lockstep: Path, data: Path, folder: Path, whole: bool) -> None:
        self.lockstep, self.folder, self.whole = lockstep, folder, whole
        self.bard, self.tiny = str(data / "bard-qwen3"), str(data / "tiny/qwen3-default")

    def generate(self) -> str:
        count, sample = (10_000, 200) if self.whole else (200, 20)
        made = requests(count, 7)
        served, curve = generate(self.lockstep, self.bard, file_of(self.folder, "all.jsonl", made),
                                 SERVED, max(count // 10, 20))
        print("  requests and MB:", " ".join(f"{n}:{mb:.1f}" for n, mb in curve))
        expected = sum(one.get("n", 1) for one in made)
        if len(served) != expected:
            return f"{len(served)} answers, {expected} were wanted"
        found = {key_of(answer): answer for answer in served}
        chosen = random.Random(3).sample(range(count), sample)
        alone, _ = generate(self.lockstep, self.bard,
                            file_of(self.folder, "alone.jsonl", [made[i] for i in chosen]),
                            ["--dtype", "fp32", "--max-batch", "1", "--ignore-eos"])
        for answer in alone:
            there = found[chosen[answer["request"]], answer["sample"]]
            if there["tokens"] != answer["tokens"] or there["ending"] != answer["ending"]:
                return f"request {chosen[answer['request']]} has other tokens than alone"
        print(f"  {len(alone)} texts are those that are made alone")
        return trouble_of_curve(curve) if self.whole else ""

    def run(self) -> str:
        """Memory of a judged run by how far it says that it is: requests end one after another."""
        count = 2000 if self.whole else 40
        rng = random.Random(5)
        made = [{"id": f"r{i}", "max_new": rng.randint(1, 3),
                 "tokens": [rng.randint(1, 300) for _ in range(rng.randint(2, 8))]}
                for i in range(count)]
        told = self.folder / "run.json"
        terminal, its_end = pty.openpty()  # where the run shows how many tokens it has computed
        process = subprocess.Popen(
            [self.lockstep, "run", "-m", self.tiny, "--requests",
             file_of(self.folder, "run.jsonl", made), "--dtype", "fp32", "--pages", "16",
             "--page-size", "4", "--max-batch", "4", "--json", str(told)],
            stdout=subprocess.PIPE, stderr=its_end, text=True,
            env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "200"})
        os.close(its_end)
        by_requests = []

        def watch() -> None:
            while shown := shown_on(terminal):
                memory = resident_mb(process.pid)  # 0: it has ended
                for done, total in re.findall(r"(\d+) of (\d+) tokens", shown)[-1:]:
                    if memory > 0:
                        by_requests.append((count * int(done) / int(total), memory))
        watcher = threading.Thread(target=watch)
        watcher.start()
        out, _ = process.communicate()
        watcher.join()
        os.close(terminal)

        def megabytes_at(requests: int) -> float:
            return min(by_requests, key=lambda of: abs(of[0] - requests))[1]
        print("  requests and MB:",
              " ".join(f"{n}:{megabytes_at(n):.1f}" for n in range(0, count + 1, count // 8)))
        if process.returncode != 0:
            return f"status {process.returncode}: {out[-300:]}"
        held = [note for note in json.loads(told.read_text())["notes"] if "pages" in note]
        if held:
            return held[0]
        growth = megabytes_at(count * 9 // 10) - megabytes_at(count * 3 // 10)
        if self.whole and growth > MOST_GROWTH_OF_JUDGED:
            return f"memory grows by {growth:.0f} MB"
        return ""

    def repeats(self) -> str:
        count = 50 if self.whole else 3
        path = file_of(self.folder, "repeats.jsonl", requests(24, 11))
        hashes = set()
        for i in range(count):
            trace = self.folder / f"repeat{i}.journal"
            generate(self.lockstep, self.bard, path, [*SERVED, "--trace", str(trace)])
            lines = subprocess.run([self.lockstep, "inspect", trace, "--journal"],
                                   capture_output=True, text=True, check=True).stdout.splitlines()
            tensors = [line for line in lines if line.startswith('{"kind":"tensor"')]
            passes = [line for line in lines if line.startswith('{"kind":"pass"')]
            assert tensors and passes
            hashes.add(hashlib.sha256("\n".join(passes + tensors).encode()).hexdigest())
            trace.unlink()
        print(f"  {count} repeats, {len(hashes)} traces by their bits")
        return "" if len(hashes) == 1 else "equal runs have other bits"

    def threads(self) -> str:
        verdicts = {}
        for threads in range(1, 9) if self.whole else (1, 2):
            result = self.folder / f"threads{threads}.json"
            done = subprocess.run(
                [self.lockstep, "run", "-m", self.tiny, "--tokens", "1,2,3,4,5", "--tokens", "9,8",
                 "-n", "4", "--threads", str(threads), "--json", str(result), "-q"],
                capture_output=True, text=True, check=False, env=ENVIRONMENT)
            told = json.loads(result.read_text())
            verdicts[threads] = (done.returncode, told["verdict"],
                                 [request["tokens"] for request in told["requests"]])
        print("  verdicts by threads:", {n: v[1] for n, v in verdicts.items()})
        same = {json.dumps(verdict) for verdict in verdicts.values()}
        return "" if len(same) == 1 else f"verdicts or tokens differ: {verdicts}"


PARTS = ("generate", "run", "repeats", "threads")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lockstep", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(given.lockstep.resolve(), given.data.resolve(), Path(name), given.whole)
        for part in given.only.split(",") if given.only else (PARTS if given.whole else PARTS[:1]):
            begin = time.monotonic()
            print(part, flush=True)
            trouble = getattr(soak, part)()
            print(f"  {trouble or 'well'}, {time.monotonic() - begin:.1f} s", flush=True)
            status |= int(bool(trouble))
    return status


if __name__ == "__main__":
    sys.exit(main())
