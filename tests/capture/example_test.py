"""The engine in C of traces/examples writes its own trace, which is judged clean.

example_test.py TINY_QWEN3 LOCKSTEP LIBRARY
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

MODEL = pathlib.Path(__file__).resolve().parents[1] / "data/tiny/qwen3-default"
TOKENS = ("17", "250", "3", "99", "4", "301", "12")


def run(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          check=False)


class Example(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def judged(self, name):
        trace = self.folder / name
        made = run(EXAMPLE, MODEL, trace, *TOKENS)
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        said = run(LOCKSTEP, "judge", trace, "--model", MODEL, "--format", "json")
        self.assertIn(said.returncode, (0, 1), said.stderr)
        return said.returncode, json.loads(said.stdout)

    def test_its_trace_is_clean(self):
        for name in ("x.h5", "x.trace"):
            with self.subTest(trace=name):
                status, result = self.judged(name)
                self.assertEqual(status, 0, result["story"])
                self.assertGreater(result["nodes"]["judged"], 3 * 3 * 15)
                self.assertEqual(result["scope"]["contracts"]["attn.norm"], "fused")
                self.assertEqual(result["provenance"]["engine"], "tiny_qwen3")
                self.assertFalse([note for note in result["notes"] if "unsealed" in note])

    def test_a_trace_that_cannot_be_made_is_a_sentence(self):
        self.judged("x.h5")
        again = run(EXAMPLE, MODEL, self.folder / "x.h5", *TOKENS)
        self.assertEqual(again.returncode, 2)
        self.assertIn("x.h5: exists already", again.stderr)

    def test_the_library_needs_neither_libtorch_nor_cuda(self):
        """Nor does it show symbols of its own, which would meet those of the engine."""
        needed = run("ldd", LIBRARY).stdout
        self.assertIn("libhdf5", needed)
        for name in ("torch", "c10", "cuda", "cublas", "dnnl"):
            self.assertNotIn(f"lib{name}", needed)
        shown = [line.split()[-1] for line in run("nm", "-D", "--defined-only", LIBRARY).stdout
                 .splitlines() if " T " in line]
        self.assertEqual({name for name in shown if not name.startswith("_")}, {
            "lockstep_trace_abi", "lockstep_trace_open", "lockstep_trace_begin_pass",
            "lockstep_trace_show", "lockstep_trace_show_rows", "lockstep_trace_logits",
            "lockstep_trace_close", "lockstep_trace_error"})


if __name__ == "__main__":
    LIBRARY, LOCKSTEP, EXAMPLE = sys.argv.pop(), sys.argv.pop(), sys.argv.pop()
    unittest.main()
