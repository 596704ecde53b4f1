"""A rank that is killed or that stands still ends all of them, with one sentence that names it, and
no process stays."""
import os
import pathlib
import signal
import subprocess
import time

from ranks import DATA, LOCKSTEP, Checks

check = Checks()
LONG = ["--tokens", ",".join(str(3 + i % 300) for i in range(200)), "--max-new", "40"]


def start(*options):
    return subprocess.Popen([LOCKSTEP, "run", "--model", DATA / "bard-qwen3", "--ignore-eos",
                             "--tp", "2", *LONG, *options], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def ranks_of(process, count=2):
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for _ in range(2000):
        children = path.read_text().split()
        if len(children) == count:
            return [int(child) for child in children]
        time.sleep(0.005)
    raise SystemExit("the ranks did not start")


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


for delay in (0, 0.25, 1.5):  # at its start, in the meeting or the load, in a pass
    for rank in (0, 1):
        process = start()
        pids = ranks_of(process)
        time.sleep(delay)
        os.kill(pids[rank], signal.SIGKILL)
        expect(f"rank {rank} killed after {delay} s", process, pids, f"rank {rank} was ended by "
               "signal 9")
for delay in (0.1, 1.5):
    process = start("--rank-patience", "1.5")
    pids = ranks_of(process)
    time.sleep(delay)
    os.kill(pids[1], signal.SIGSTOP)
    expect(f"rank 1 stopped after {delay} s", process, pids, "rank 1 hangs", "1.5 s")

# No rank outlives the process that was started.
process = start()
pids = ranks_of(process)
time.sleep(0.5)
process.kill()
process.communicate()
check.that(gone(pids), "a rank outlives its parent")
check.end(20)
