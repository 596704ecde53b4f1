"""RoPE's pairs in another layout: recognised, declared, and the bug that no two such engines show.

python layouts_test.py LOCKSTEP. A published reference permutes the rows of q_proj and k_proj, cos
and sin to interleaved pairs, but not the gains of q_norm and k_norm.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

import capture
import patches
import trace_file
from capture import Plan, Runner

QWEN3 = str(pathlib.Path(__file__).resolve().parent.parent / "data/tiny/qwen3-default")


def beside(x):
    """The halves of the first axis, laid beside each other."""
    return torch.stack(x.chunk(2), 1).flatten(0, 1)


def interleaved_rope(_inner, q, k, cos, sin, _positions):
    def turn(x):
        even, odd, c, s = x[..., ::2], x[..., 1::2], cos[:, None], sin[:, None]
        half = c.shape[-1] // 2
        c, s = c[..., :half], s[..., :half]
        return torch.stack([even * c - odd * s, odd * c + even * s], -1).flatten(-2)
    return turn(q), turn(k)


class Layouts(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "x.h5"

    def write(self, gains, facts):
        model = capture.load(QWEN3, "fp32", "sdpa")
        blocks = [layer.self_attn for layer in model.model.layers]
        dim = blocks[0].head_dim

        def rows(weight):
            return torch.cat([beside(head) for head in weight.split(dim)])
        patch = [patches.weights([m for b in blocks for m in (b.q_proj, b.k_proj)], rows),
                 patches.rope(model, range(len(blocks)), interleaved_rope)]
        if gains:
            patch.append(patches.weights([m for b in blocks for m in (b.q_norm, b.k_norm)], rows))
        runner = Runner(model, Plan((capture.prompt_of(QWEN3, 12),), 1))
        with patches.together(patch):
            runner.run()
        trace_file.write(self.path, capture.trace_of(model, runner, facts, None))

    def judge(self, *options):
        made = subprocess.run([LOCKSTEP, "judge", self.path, "--model", QWEN3, "--format", "json",
                               *options], capture_output=True, text=True, check=False)
        self.assertNotEqual(made.stdout, "", made.stderr)
        return json.loads(made.stdout)

    def first(self, *options):
        first = self.judge(*options)["first"]
        return (first["layer"], first["point"]), first["rule"]

    def test_gains_that_were_left_in_halves_are_the_first_error(self):
        self.write(gains=False, facts={"rope_pairs": "interleaved"})
        place, rule = self.first()
        self.assertEqual(place, (0, "attn.q_norm"))
        self.assertNotIn("another order", rule)
        # Undeclared, the layout is said where it begins.
        place, rule = self.first("--rope-pairs", "half")
        self.assertEqual(place, (0, "attn.q"))
        self.assertIn("the same numbers in another order: pairs are interleaved", rule)

    def test_the_same_with_its_gains_is_right(self):
        self.write(gains=True, facts={})
        result = self.judge("--rope-pairs", "interleaved")
        self.assertEqual(result["verdict"], "clean", result["story"])
        self.assertTrue([note for note in result["notes"] if "interleaved" in note])


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop()
    unittest.main()
