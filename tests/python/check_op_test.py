"""check_op: each op right in all calls but one is wrong in that one alone; and its sentences.

python check_op_test.py LOCKSTEP
"""
import importlib.util
import unittest

import torch

import support
import lockstep
from lockstep.one_op import OPS


def right_ops():
    path = support.ROOT / "tests/kernels/plugins/right_ops.py"
    spec = importlib.util.spec_from_file_location("right_ops", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RIGHT = right_ops()


# A parameter that has as many rows as the output.
ROWS = {"rms_norm": "x", "matmul": "x", "rope": "x", "paged_attention": "q", "silu_mul": "up",
        "add": "a", "softmax_of": "index", "expert_matmul": "x", "weighted_sum": "x"}


def spoil(op, out, inputs):
    """Makes the last row wrong, by a fiftieth where it is of floating numbers."""
    if op == "kv_write":
        _, v, slots = inputs
        out.k.flatten(0, 1)[slots[-2]] = v[-2]
    elif op == "argmax":
        out[-1] = (out[-1] + 1) % inputs[0].shape[1]
    elif op == "top_k":
        out[-1] = inputs[0][-1].float().argsort()[:out.shape[1]]
    else:
        out[-1] *= 1.02


def wrong_once(op, at):
    """The right function, but for call `at`."""
    calls = []

    def function(out, *inputs):
        getattr(RIGHT, op)(out, *inputs)
        if len(calls) == at:
            spoil(op, out, inputs)
        calls.append(op)
    return function


class Ops(unittest.TestCase):
    def test_a_wrong_call_of_each_op_is_named_and_no_right_one(self):
        for op in OPS:
            with self.subTest(op):
                checked = lockstep.check_op(op, wrong_once(op, 1), OPS[op].shapes[:1])
                self.assertEqual(checked.verdict, "diverged")
                self.assertEqual(checked.judged, checked.expected)
                self.assertFalse(checked)
                number = {wrong.finding.number for wrong in checked.findings
                          if wrong.finding.statistic != "T3"}  # of all passes together
                self.assertEqual(number, {1}, str(checked))
                case = checked.findings[0]
                self.assertIn(case.case, str(checked))
                if op in ROWS:
                    self.assertEqual(case.index[0], len(case.inputs[ROWS[op]]) - 1)
                self.assertEqual(", ".join(case.inputs), OPS[op].parameters.partition(", ")[2])

    def test_a_right_one_is_clean_and_says_how_near_it_came(self):
        checked = lockstep.check_op("rms_norm", RIGHT.rms_norm, [(5, 96)], torch.float32)
        self.assertTrue(checked, str(checked))
        self.assertEqual((checked.verdict, checked.judged, checked.findings), ("clean", 6, ()))
        worst = checked.worst
        self.assertTrue(0 < worst.budgets <= 1)
        self.assertIn(worst.row, range(5))
        self.assertEqual(list(worst.inputs), ["x", "weight", "eps"])
        self.assertIn("rms_norm is clean in 6 of 6 calls, nearest 0.", str(checked))


class Sentences(support.InFolder):
    def refuse(self, part, function, op="add", **options):
        self.refused(part, lockstep.check_op, op, function, **options)

    def test_of_what_is_asked(self):
        self.refuse("'rmsnorm' is no op (rms_norm is the nearest): gather_rows", None, "rmsnorm")
        self.refuse("a shape of add is (rows, width), found (3,)", RIGHT.add, shapes=[(3,)])
        self.refuse("found int8", RIGHT.add, dtype="int8")
        self.refuse("even number of elements, found 7", RIGHT.rope, "rope", shapes=[(2, 1, 7)])
        self.refuse("7 heads share 2 heads", RIGHT.paged_attention, "paged_attention",
                    shapes=[(5, 7, 2, 4)])
        self.refuse("add is called with (out, a, b), and the function takes (out)",
                    lambda out: None)
        self.refuse("add is called with (out, a, b): a function was wanted, found None", None)
        for shapes in ((17, 64), 17, [(2.5, 3)], ["ab"]):
            self.refuse("shapes of add are a list of tuples of whole numbers, such as [(13, 200)]",
                        RIGHT.add, shapes=shapes)
        self.refuse("shapes of add are none: name one at least", RIGHT.add, shapes=[])
        with self.assertRaisesRegex(lockstep.LockstepError, "^rounding of add: 'nope' is no "
                                    "rounding contract: use fused, "):
            lockstep.check_op("add", RIGHT.add, rounding="nope")
        self.refuse("rounding of add is the name of a contract, such as hf: found None", RIGHT.add,
                    rounding=None)
        for seed in ("x", 1.5, 1 << 70):
            self.refuse(f"seed of add is a whole number of 64 bits: found {seed!r}", RIGHT.add,
                        seed=seed)
        self.refuse("'3' is no op: gather_rows", RIGHT.add, 3)

    def test_of_a_device_before_anything_runs(self):
        def runs(out, a, b):
            self.fail("it was called")
        for device in ("nope", "meta", "cuda:99", 2.5):
            self.refuse("device of add is cpu, cuda or cuda:N, where torch has that: found "
                        f"{device!r} (", runs, device=device)

    def test_of_what_a_function_does(self):
        def fails(out, a, b):
            raise ValueError("no kernel\nfor it")

        def left(out, a, b):
            out[:-1] = (a + b)[:-1]

        def beside(out, a, b):
            out.copy_(a + b)
            torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(1)

        def changes(out, a, b):
            out.copy_(a.add_(b))

        def elsewhere(cache, k, v, slots):
            RIGHT.kv_write(cache, k, v, slots)
            cache.k.fill_(1)

        self.refuse("add failed: ", fails)
        self.refuse("ValueError: no kernel for it", fails)
        self.refuse("add returned a Tensor: an op writes into its first argument",
                    lambda out, a, b: a + b)
        self.refuse("add left element 2400 of its output [13, 200] unwritten (random)", left)
        self.refuse("add wrote beside its output", beside)
        self.refuse("add changed its input a (random)", changes)
        self.refuse("kv_write wrote k into slot ", elsewhere, "kv_write")


if __name__ == "__main__":
    support.main()
