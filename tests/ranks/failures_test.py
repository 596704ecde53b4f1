"""A rank that is killed or that stands still ends all of them, with one sentence that names it, and
no process stays; what was written reads."""
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from ranks import DATA, LOCKSTEP, Checks, build_gate, standing_at, wait_for

check = Checks()
# Some seconds, so that no rank is through before it is stopped.
LONG = ["--tokens", ",".join(str(3 + i % 300) for i in range(60)), "--max-new", "180"]
FOLDER = tempfile.TemporaryDirectory()
GATE = build_gate(FOLDER.name)


def start(*options, **environment):
    return subprocess.Popen([LOCKSTEP, "run", "--model", DATA / "bard-qwen3", "--ignore-eos",
                             "--tp", "2", "--threads", "1", *LONG, *options],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=os.environ | environment)


def ranks_of(process):
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    pids = wait_for(lambda: len(path.read_text().split()) == 2 and path.read_text().split())
    return [int(pid) for pid in pids]


def gone(pids):
    for _ in range(200):
        alive = [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()
                 and " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()]
        if not alive:
            return True
        time.sleep(0.01)
    return False


def expect(name, process, pids, *words):
    begun = time.monotonic()
    out, err = process.communicate(timeout=60)
    took = time.monotonic() - begun
    check.that(process.returncode == 2 and out == "" and err.count("error:") == 1
               and all(word in err for word in words), f"{name}: {process.returncode} {err}")
    check.that(took < 30, f"{name}: took {took:.0f} s")
    check.that(gone(pids), f"{name}: a rank stays")


def killed(rank):
    return f"rank {rank} was ended by signal 9"


def at_start(rank):
    process = start()
    pids = ranks_of(process)
    os.kill(pids[rank], signal.SIGKILL)
    expect(f"rank {rank} killed at its start", process, pids, killed(rank))


def at_gate(where, count):
    """A rank is killed where all stand still, or where it waits for the one that does."""
    gate = f"{FOLDER.name}/{where}"
    process = start("--dtype", "fp32", "--ops", GATE, GATE=gate, GATE_AT=where)
    pids = ranks_of(process)
    standing = wait_for(lambda: len(found := standing_at(gate)) == count and found)
    rank = 1 if len(standing) == 2 else 1 - pids.index(standing[0])
    if where == "op":
        time.sleep(0.5)  # until it waits
    os.kill(pids[rank], signal.SIGKILL)
    words = {"load": "while it loaded its weights", "ops": "of pass 0", "op": "in the all-reduce"}
    expect(f"a rank killed at {where}", process, pids, killed(rank), words[where])


def at_trace():
    """Rank 0 is killed while it writes its trace: what was written reads."""
    trace = pathlib.Path(FOLDER.name) / "cut.trace"
    process = start("--chunk", "8", "--keep", "full", "--trace", trace)
    pids = ranks_of(process)
    wait_for(lambda: sum(file.stat().st_size for file in trace.parent.rglob("cut.trace*/*")
                         if file.is_file()) > 1 << 20)
    os.kill(pids[0], signal.SIGKILL)
    expect("rank 0 killed at its trace", process, pids, killed(0))
    done = subprocess.run([LOCKSTEP, "inspect", trace, "--passes"], capture_output=True, text=True)
    check.that("0        0  0-7" in done.stdout and "the run did not end" in done.stdout,
               f"the trace: {done.stdout} {done.stderr}")


def stopped(delay):
    process = start("--rank-patience", "1.5")
    pids = ranks_of(process)
    time.sleep(delay)
    os.kill(pids[1], signal.SIGSTOP)
    expect(f"rank 1 stopped after {delay} s", process, pids, "rank 1 hangs", "1.5 s")


def parent():
    """No rank outlives the process that was started."""
    process = start()
    pids = ranks_of(process)
    time.sleep(0.5)
    process.kill()
    process.communicate()
    check.that(gone(pids), "a rank outlives its parent")


# Most of each is waiting.
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    jobs = [pool.submit(at_start, 0), pool.submit(at_start, 1), pool.submit(at_gate, "load", 2),
            pool.submit(at_gate, "ops", 2), pool.submit(at_gate, "op", 1),
            pool.submit(at_trace), pool.submit(stopped, 0.1), pool.submit(stopped, 1.5),
            pool.submit(parent)]
    for job in jobs:
        job.result()
FOLDER.cleanup()
check.end(26)
