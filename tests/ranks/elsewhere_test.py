"""Ranks that are started each by itself find each other, or say in a sentence why not, and none
stays."""
import concurrent.futures
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time

from ranks import (DATA, LOCKSTEP, PROMPTS, Checks, build_gate, run, standing_at, tokens,
                   wait_for)

check = Checks()
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
PLAIN = {name: value for name, value in os.environ.items()
         if name not in TORCHRUN and not name.startswith("TORCHELASTIC")}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start(*options, model="tiny/qwen3-default", environment=None, binary=LOCKSTEP):
    return subprocess.Popen([binary, "run", "--model", DATA / model, "--max-new", "3",
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


FOLDER = tempfile.TemporaryDirectory()
MODEL = "tiny/qwen3-default"


def meets(how, begin, alone):
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


def other(name, words, *options, **rank_1):
    """Rank 1 is started otherwise than rank 0."""
    port = free_port()
    ends(name, [rank(0, port), rank(1, port, *options, **rank_1)], *words)


def other_version():
    """A copy of the command that says of itself that it is of another commit."""
    said = subprocess.run([LOCKSTEP, "--version"], capture_output=True, text=True).stdout
    commit = re.search(r"[0-9a-f]{40}", said)[0].encode()
    program = LOCKSTEP.read_bytes()
    check.that(commit in program, f"the commit of {LOCKSTEP}: {commit}")
    copy = pathlib.Path(FOLDER.name) / "lockstep"
    copy.write_bytes(program.replace(commit, commit[::-1]))
    copy.chmod(0o755)
    for library in LOCKSTEP.parent.glob("liblockstep_*.so"):
        (copy.parent / library.name).symlink_to(library.resolve())
    other("other versions", ["its git_sha"], binary=copy)


def nobody():
    port = free_port()
    ends("no rank 1", [rank(0, port, "--rank-patience", 2)], "rank 1 of 2 did not come")
    ends("no rank 0", [rank(1, port, "--rank-patience", 2)], "rank 1 found nobody")


def port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ends("a port in use", [rank(number, port, "--rank-patience", 2) for number in (0, 1)],
             "cannot meet at", "rank 1 found nobody", "rank 1 met nobody", "did not come")


def killed():
    """Who is killed takes the others along: one stands still in an op, the other waits for it."""
    port, gate = free_port(), f"{FOLDER.name}/stands"
    both = [rank(number, port, "--dtype", "fp32", "--ops", build_gate(FOLDER.name),
                 environment={"GATE": gate, "GATE_AT": "op"}) for number in (0, 1)]
    standing = wait_for(lambda: standing_at(gate))[0]
    children = [pathlib.Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split()
                for one in both]
    dies = 0 if str(standing) in children[0] else 1
    both[dies].kill()
    both[dies].communicate()
    ends("a rank is killed", [both[1 - dies]], "a rank is gone")


# Most of them wait for somebody who does not come: several at a time.
with concurrent.futures.ThreadPoolExecutor(5) as pool:
    alone, *_ = run(MODEL, "--dtype", "fp32")
    jobs = [pool.submit(meets, "flags", rank, alone),
            pool.submit(meets, "torchrun", torchrun, alone),
            pool.submit(nobody), pool.submit(port_in_use), pool.submit(killed),
            pool.submit(other, "other options", [
                "rank 1 was not started as rank 0 was: its page_size is '8', rank 0's is '16'"],
                "--page-size", 8),
            pool.submit(other, "rows", ["its sequence_parallel is '1'"], "--sequence-parallel"),
            pool.submit(other, "other requests", ["its max_new", "its prompt"], "--tokens", "9"),
            pool.submit(other, "other models", ["its model_xxh3"],
                        model="tiny/qwen3-untied-sharded"),
            pool.submit(other_version)]
    for job in jobs:
        job.result()

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
FOLDER.cleanup()
check.end(36)
