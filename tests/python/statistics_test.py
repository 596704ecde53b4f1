"""Two files of statistics, JSON lines, held to each other, without torch.

python statistics_test.py LOCKSTEP
"""
import json
import os
import subprocess
import sys

import numpy as np

import support
from support import InFolder

from lockstep import statistics

TENSORS = {"embed": (5, 64), "layers.0.attn": (5, 64), "layers.0.mlp": (5, 128), "logits": (5, 99)}


def line_of(tag, values, head=16):
    return {"tag": tag, "shape": list(values.shape), "mean": float(values.mean()),
            "sum": float(values.sum()), "head_values": values.ravel()[:head].tolist()}


class StatisticsTest(InFolder):
    def setUp(self):
        super().setUp()
        made = np.random.default_rng(5)
        self.tensors = [(tag, made.normal(size=shape)) for tag, shape in TENSORS.items()]
        self.noise = made.normal(size=(5, 128)) * 1e-4

    def write(self, name, tensors):
        path = self.folder / name
        path.write_text("".join(json.dumps(line_of(tag, x)) + "\n" for tag, x in tensors))
        return path

    def compared(self, other):
        return statistics.compare(self.write("a", self.tensors), self.write("b", other))

    def changed(self, tag, change):
        return [(name, change(x) if name == tag else x) for name, x in self.tensors]

    def test_rounding_is_no_difference_and_what_was_not_seen_is_said(self):
        found = self.compared([(tag, (x + self.noise[:, :x.shape[1]])[None])
                               for tag, x in self.tensors])
        self.assertEqual((found.different, found.missing, found.sliced), ([], [], []))
        self.assertEqual((found.alike, found.seen, found.elements), (4, 64, 1775))
        self.assertIn("64 of their 1775 elements", str(found))
        self.assertIn("what that cannot tell", str(found))
        self.assertIn("(in layers.0.mlp, the largest)", str(found))
        self.assertNotIn("clean", str(found))

    def test_the_first_difference_is_the_first_line_that_differs(self):
        found = self.compared([(tag, x * (1.1 if tag.startswith("layers") else 1))
                               for tag, x in self.tensors])
        self.assertEqual([text.split()[0] for text in found.different],
                         ["layers.0.attn", "layers.0.mlp"])
        self.assertTrue(str(found).startswith("first difference: layers.0.attn value 0 of the "))
        twice = statistics.compare(  # of two passes, the second tag of the first comes before
            self.write("a", self.tensors + self.tensors),
            self.write("b", self.changed("logits", lambda x: x * 2) +
                       self.changed("embed", lambda x: -x)))
        self.assertEqual([text.split()[0] for text in twice.different], ["logits#0", "embed#1"])

    def test_one_element_behind_the_first_shows_in_the_sum_or_is_said_not_to(self):
        def off(by):
            def change(x):
                x = x.copy()
                x[4, 20] += by
                return x
            return change
        limit = float(self.compared(self.tensors).blind.split()[7])
        self.assertEqual(self.compared(self.changed("layers.0.mlp", off(limit * 0.9))).different,
                         [])
        text, = self.compared(self.changed("layers.0.mlp", off(limit * 1.2))).different
        self.assertIn("agrees in its first values, but the sum is", text)

    def test_another_order_is_told_from_other_numbers(self):
        text, = self.compared(self.changed("embed", lambda x: x[:, ::-1])).different
        self.assertIn("may be in another order", text)

    def test_missing_duplicate_and_sliced_are_said_and_not_judged(self):
        other = self.changed("logits", lambda x: x[-1:])[1:] + self.tensors[2:3] + \
            [("extra", np.ones(3))]
        found = self.compared(other)
        self.assertEqual(found.different, [])
        self.assertEqual([text.split()[0] for text in found.missing], ["embed", "extra"])
        self.assertEqual(len(found.duplicate), 1)
        self.assertIn("layers.0.mlp is there 1 and 2 times", found.duplicate[0])
        self.assertIn("which may be of other calls", found.duplicate[0])
        text, = found.sliced
        self.assertIn("logits is [5, 99] and [1, 99]: one may be a slice of the other", text)
        self.assertIn("first values are others", text)
        self.assertEqual(found.alike, 2)

    def test_nan_is_itself_and_no_number(self):
        def spoiled(x):
            x = x.copy()
            x[0, 3] = np.nan
            return x
        spoiled_too = self.changed("embed", spoiled)
        self.assertIn("value 3 of the first 16", self.compared(spoiled_too).different[0])
        self.tensors = spoiled_too
        self.assertEqual(self.compared(spoiled_too).different, [])

    def test_other_files_are_sentences(self):
        right = self.write("a", self.tensors)
        whole = line_of("x", np.ones(4))
        for text, part in (("", "has no line"), ("{", "b:1 is no line of statistics"),
                           ("[]", "no line of statistics"), ('{"tag": "x"}', "KeyError: 'shape'"),
                           (json.dumps(whole | {"shape": [3]}), "4 head_values of a tensor [3]")):
            (self.folder / "b").write_text(text)
            self.refused(part, statistics.compare, right, self.folder / "b")
        self.refused("cannot be read", statistics.compare, right, self.folder / "no")

    def test_the_command_says_it_and_has_a_status(self):
        right = self.write("a", self.tensors)
        wrong = self.write("b", self.changed("embed", lambda x: -x))
        other = self.write("c", [("z", np.ones(3))])
        for second, status, said in ((right, 0, "4 tensors are not seen to differ"),
                                     (wrong, 1, "first difference: embed"),
                                     (other, 2, "nothing could be compared")):
            made = subprocess.run([sys.executable, "-m", "lockstep", "stats", right, second],
                                  env=os.environ | {"PYTHONPATH": str(support.PACKAGE)},
                                  capture_output=True, text=True, check=False)
            self.assertEqual(made.returncode, status, made.stderr)
            self.assertIn(said, made.stdout)


if __name__ == "__main__":
    support.main()
