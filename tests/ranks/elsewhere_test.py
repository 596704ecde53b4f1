"""Ranks that are started each by itself find each other, or say in a sentence why not, and none
stays."""
import json
import os
import socket
import subprocess
import time

from ranks import DATA, LOCKSTEP, PROMPTS, Checks, run, tokens

check = Checks()
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
PLAIN = {name: value for name, value in os.environ.items()
         if name not in TORCHRUN and not name.startswith("TORCHELASTIC")}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start(*options, model="bard-qwen3", environment=None, max_new=3):
    return subprocess.Popen([LOCKSTEP, "run", "--model", DATA / model, "--max-new", str(max_new),
                             "--ignore-eos", *PROMPTS, "--format", "json", *map(str, options)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**PLAIN, **(environment or {})})


def rank(number, port, *options, world=2, **other):
    return start("--rank", number, "--tp", world, "--rendezvous", f"127.0.0.1:{port}", *options,
                 **other)


def torchrun(number, port, *options):
    return start("--tp", 2, *options,
                 environment={"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": str(number),
                              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})


def ends(name, processes, *words):
    """Each of them ends in trouble within half a minute, and says so in a sentence, with one of
    the words."""
    begun = time.monotonic()
    for process in processes:
        out, err = process.communicate(timeout=60)
        check.that(process.returncode == 2 and out == "" and err.count("error:") == 1
                   and err.count("\n") == 1 and any(word in err for word in words),
                   f"{name}: {process.returncode} {err}")
    took = time.monotonic() - begun
    check.that(took < 30, f"{name}: took {took:.0f} s")


alone, *_ = run("bard-qwen3", "--dtype", "fp32")
for how, begin in (("flags", rank), ("torchrun", torchrun)):
    port = free_port()
    second = begin(1, port, "--dtype", "fp32")
    first = begin(0, port, "--dtype", "fp32")
    out, err = first.communicate(timeout=60)
    check.that(first.returncode == 0, f"{how}: rank 0: {first.returncode} {err}")
    result = json.loads(out)
    check.that(result["verdict"] == "clean" and tokens(result) == tokens(alone),
               f"{how}: {result['story']}")
    nothing, err = second.communicate(timeout=60)
    check.that(second.returncode == 0 and nothing == "", f"{how}: rank 1: {err}")

port = free_port()
ends("other options", [rank(0, port), rank(1, port, "--page-size", 8)],
     "rank 1 was not started as rank 0 was: its page_size is '8', rank 0's is '16'")
port = free_port()
ends("other requests", [rank(0, port), rank(1, port, "--tokens", "9")], "its max_new", "its prompt")
port = free_port()
ends("other models", [rank(0, port, model="tiny/qwen3-default"),
                      rank(1, port, model="tiny/qwen3-untied-sharded")], "its model_xxh3")
port = free_port()
ends("no rank 1", [rank(0, port, "--rank-patience", 2)], "rank 1 of 2 did not come")
ends("no rank 0", [rank(1, port, "--rank-patience", 2)], "rank 1 found nobody")
with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    ends("a port in use", [rank(number, port, "--rank-patience", 2) for number in (0, 1)],
         "cannot meet at", "rank 1 found nobody", "rank 1 met nobody", "did not come")

# Who is killed takes the others along.
port = free_port()
long = ["--tokens", ",".join(str(3 + i % 300) for i in range(200))]
both = [rank(number, port, *long, max_new=40) for number in (0, 1)]
time.sleep(2.5)
both[1].kill()
both[1].communicate()
ends("rank 1 is killed", both[:1], "a rank is gone", "rank 1 of 2 did not come")

for options, says in [(["--rank", 0], "--rendezvous"), (["--rendezvous", "a:1"], "--rank"),
                      (["--rank", 2, "--tp", 2, "--rendezvous", "a:1"], "0..1"),
                      (["--rank", 0, "--rendezvous", "a:1"], "add --tp 2"),
                      (["--rank", 0, "--tp", 2, "--rendezvous", "nowhere"], "HOST:PORT"),
                      (["--rank", 0, "--tp", 2, "--rendezvous", "a:b"], "port")]:
    process = start(*options)
    out, err = process.communicate(timeout=60)
    check.that(process.returncode == 2 and says in err and err.count("\n") == 1,
               f"{options}: {err}")
process = start("--tp", 3, environment={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a",
                                        "MASTER_PORT": "1"})
check.that("torchrun started 2 ranks" in process.communicate(timeout=60)[1], "WORLD_SIZE")
check.end(31)
