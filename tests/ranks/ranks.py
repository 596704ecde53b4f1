"""The command over ranks, as tests call it: `python X_test.py LOCKSTEP DATA`."""
import json
import pathlib
import subprocess
import sys

LOCKSTEP, DATA = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
PROMPTS = ["--tokens", "5,17,300,2,31,90,44", "--tokens", "7,8"]


def run(model, *options, prompts=PROMPTS, max_new=3):
    """The result as data, its exit status and what stood on stderr."""
    done = subprocess.run([LOCKSTEP, "run", "--model", DATA / model, "--max-new", str(max_new),
                           "--ignore-eos", *prompts, "--format", "json", *map(str, options)],
                          capture_output=True, text=True, timeout=120)
    result = json.loads(done.stdout) if done.stdout else None
    return result, done.returncode, done.stderr


def tokens(result):
    return [request["tokens"] for request in result["requests"]]


class Checks:
    """Counts what was checked: a test that checked nothing fails."""

    def __init__(self):
        self.done, self.failed = 0, []

    def that(self, ok, what):
        self.done += 1
        if not ok:
            self.failed.append(what)
            print("FAILED:", what)

    def end(self, least):
        print(f"{self.done} checks, {len(self.failed)} failed")
        sys.exit(1 if self.failed or self.done < least else 0)
