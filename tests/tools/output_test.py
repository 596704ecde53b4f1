"""Nothing but the result on stdout, and nothing on stderr: lockstep_binary checkpoint."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP, MODEL = sys.argv[1:3]
RUN = ["run", "-m", MODEL, "--tokens", "1,2,3", "-n", "4"]
FAULT = ["--fault", "rope-interleaved@layer=1"]


def call(*arguments):
    done = subprocess.run([LOCKSTEP, *arguments], capture_output=True, text=True, check=False)
    assert done.stderr == "", (arguments, done.stderr)
    return done.returncode, done.stdout


class Output(unittest.TestCase):
    def test_of_every_command_is_json_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            a, b = os.path.join(folder, "a.trace"), os.path.join(folder, "b.trace")
            calls = [[*RUN, "--keep", "full", "--trace", a], [*RUN, *FAULT, "--trace", b],
                     ["judge", a, "-m", MODEL], ["diff", a, b], ["inspect", a],
                     ["inspect", a, "--point", "attn.q", "--layer", "1"], ["model", MODEL],
                     ["points"], ["faults"]]
            for arguments in calls:
                status, out = call(*arguments, "--format", "json")
                self.assertIn(status, (0, 1), arguments)
                json.loads(out)
            _, out = call("generate", "-m", MODEL, "--tokens", "1,2", "--format", "json")
            for line in out.splitlines():
                json.loads(line)
            self.assertEqual(call("judge", a, "-m", MODEL, "-q")[1].count("\n"), 1)

    def test_a_judged_trace_keeps_its_verdict_and_stays_the_same_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a.trace", "a.h5", "a.journal"):
                path, html = os.path.join(folder, name), os.path.join(folder, "a.html")
                full = [] if name == "a.journal" else ["--keep", "full"]
                call(*RUN, *FAULT, *full, "--trace", path)
                self.assertIn("judged: diverged (layer 1 attn.q_rope", call("inspect", path)[1])
                digests = call("inspect", path, "--format", "csv")[1]
                if full:  # judged again, of which the screen says where it is kept
                    _, out = call("judge", path, "-m", MODEL)
                    self.assertIn(f"in {path}", " ".join(out.split()))
                    call("judge", path, "-m", MODEL, "--layers", "0")
                    call("judge", path, "-m", MODEL, "--schema", "sglang")
                    self.assertIn("judged: diverged", call("inspect", path)[1],
                                  "a verdict on a part is none on the whole")
                self.assertEqual(call("inspect", path, "--format", "csv")[1], digests)
                self.assertEqual(call("diff", path, path)[0], 0)
                call("report", path, "--html", html)
                with open(html, encoding="utf-8") as page:
                    self.assertIn("Diverged at layer 1 attn.q_rope", page.read())

    def test_a_trace_that_may_not_be_written_is_judged_all_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.h5")
            call(*RUN, "--keep", "full", "--trace", path)
            whole = pathlib.Path(path).read_bytes()
            done = subprocess.run(["bash", "-c", 'ulimit -f "$1"; shift; exec "$@"', "_",
                                   str(len(whole) // 1024 // 2), LOCKSTEP, "judge", path, "-m",
                                   MODEL], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("warning: the trace does not keep its verdict: ", done.stderr)
            self.assertEqual(pathlib.Path(path).read_bytes()[:len(whole) // 2],
                             whole[:len(whole) // 2])
            self.assertEqual(call("inspect", path)[0], 0)

    def test_quiet_is_the_last_line_and_verbose_leaves_nothing_out(self):
        _, shown = call(*RUN, *FAULT)
        status, quiet = call(*RUN, *FAULT, "-q")
        self.assertEqual((status, quiet), (1, shown.splitlines()[-1] + "\n"))
        _, verbose = call(*RUN, *FAULT, "-v")
        places = json.loads(call(*RUN, *FAULT, "--format", "json", "-q")[1])["points"]
        for place in places:
            if place["layer"] is not None:
                self.assertIn(f"layer {place['layer']} {place['point']} ", verbose)

    def test_fail_fast_stops_and_says_what_it_left_out(self):
        status, out = call(*RUN, *FAULT, "--fail-fast")
        self.assertEqual(status, 1)
        self.assertIn("(--fail-fast): 1 of 4 tokens judged", " ".join(out.split()))
        self.assertTrue(out.splitlines()[-1].startswith("diverged: layer 1 attn.q_rope"), out)
        status, out = call(*RUN, "--fail-fast")
        self.assertEqual(status, 0)
        self.assertNotIn("fail-fast", out)

    def test_fail_fast_stops_a_judgement_too(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "x.trace")
            call(*RUN, *FAULT, "--keep", "full", "--trace", trace)
            status, out = call("judge", trace, "-m", MODEL, "--fail-fast")
        self.assertEqual(status, 1)
        self.assertIn("(--fail-fast): 1 of 4 passes judged", " ".join(out.split()))

    def test_a_long_run_says_so_before_it_begins(self):
        long = subprocess.Popen([LOCKSTEP, "run", "-m", MODEL, "--tokens", "1", "-n", "65535",
                                 "--ignore-eos"], stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                                text=True)
        line = long.stderr.readline()
        long.kill()
        long.communicate()
        self.assertRegex(line, r"^65536 tokens to judge take about \d+ (minutes|hours) here: ")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
