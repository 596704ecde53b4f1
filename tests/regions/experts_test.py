"""Traces of a mixture of experts that lack the router's points, or the choice of experts.

python experts_test.py LOCKSTEP, the program that runs and judges. The router of the model here
tells two experts apart by less than the engine rounds: both models of the judge must follow the
trace where it chose between them, or a token of a right run is an error.
"""
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "traces/python"))
from lockstep import Trace, Writer, judge  # noqa: E402

PUBLISHED = ROOT / "tests/data/tiny/qwen3-moe"
ROUTER = "model.layers.{}.mlp.gate.weight"
LENGTHS = (160, 90, 41, 7)


def nearly_tied(folder):
    """A checkpoint whose routers tell expert 1 from 2 by the last bit of one weight in bf16."""
    shutil.copytree(PUBLISHED, folder)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:begin])
    for layer in range(3):
        of = tensors[ROUTER.format(layer)]
        row = of["shape"][1] * 2
        first = begin + of["data_offsets"][0] + row
        data[first + row:first + 2 * row] = data[first:first + row]
        data[first + row] ^= 1
    file.write_bytes(data)
    return str(folder)


def prompts():
    made = random.Random(3)
    return [text for length in LENGTHS for text in
            ("--tokens", ",".join(str(made.randrange(1, 300)) for _ in range(length)))]


def run(path, model, *options):
    """A trace of the engine that has all points."""
    path.unlink(missing_ok=True)
    subprocess.run([LOCKSTEP, "run", "--model", model, *prompts(), "--max-new", "8", "--keep",
                    "full", "--trace", str(path), *options], capture_output=True, check=False)


def cut(source, target, hidden):
    """The same run without those points; K and V are found where they were written."""
    target.unlink(missing_ok=True)
    with Trace(source) as trace, Writer(target, graph=trace.graph, dtype=trace.dtype,
                                        schema=trace.schema) as writer:
        writer.requests = trace.requests
        for number, rows in enumerate(trace.passes):
            writer.begin_pass([row.token for row in rows.rows],
                              [row.position for row in rows.rows],
                              [row.request for row in rows.rows], logit_rows=rows.logit_rows,
                              decode=[row.decode for row in rows.rows])
            for info in trace.tensors:
                if info.number == number and info.point not in (*hidden, "attn.kv"):
                    writer.show_elements(info.point, info.layer, trace.bits(info))


class Experts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.right = pathlib.Path(folder.name) / "right.h5"
        cls.cut = pathlib.Path(folder.name) / "cut.h5"
        cls.model = nearly_tied(pathlib.Path(folder.name) / "model")
        run(cls.right, cls.model)

    def judged(self, source, *hidden):
        cut(source, self.cut, hidden)
        return judge(self.cut, self.model, command=LOCKSTEP)

    def test_a_right_run_is_clean_without_its_router(self):
        for hidden in (("mlp.router",), ("mlp.router", "mlp.weights")):
            with self.subTest(hidden=hidden):
                verdict = self.judged(self.right, *hidden)
                self.assertEqual(verdict.verdict, "clean", verdict.story)

    def test_a_wrong_kernel_is_named_without_the_router(self):
        wrong = self.cut.with_name("wrong.h5")
        run(wrong, self.model, "--fault", "moe-router-not-normalised@layer=1")
        verdict = self.judged(wrong, "mlp.router")
        self.assertEqual((verdict.verdict, verdict.first.place),
                         ("diverged", "layer 1 mlp.weights"), verdict.story)

    def test_what_chose_is_not_known_without_its_choice(self):
        verdict = self.judged(self.right, "mlp.experts")
        self.assertEqual(verdict.verdict, "inconclusive", verdict.story)
        self.assertIn("mlp.experts", verdict.story)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop()
    unittest.main()
