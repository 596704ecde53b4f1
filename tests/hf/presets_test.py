"""Each engine's rounding contracts: right on a run that rounds so, and wrong where another does.

python presets_test.py LOCKSTEP. The runs are of transformers, with its ops replaced by ones that
round as the kernels of the engine do (variants.py).
"""
import itertools
import os
import pathlib
import sys
import tempfile
import unittest

import torch
from torch.nn.functional import linear

import capture
import judging
import patches
import trace_file
from capture import Plan, Runner
from variants import VARIANTS, linears

WHOLE = "LOCKSTEP_WHOLE" in os.environ
QWEN3 = str(pathlib.Path(__file__).resolve().parent.parent / "data" / (
    "bard-qwen3" if WHOLE else "tiny/qwen3-default"))
FUSED = ("rope-fp32-once", "act-fused")
FIRST = ("--fail-fast", "--layers", "0")


def operands(dtype):
    """Linear ops in fp32 of an input that was rounded to that type."""
    return linears("operands", "", lambda module, x: linear(x.to(dtype).float(), module.weight,
                                                            module.bias))


# What llama.cpp has otherwise than transformers besides: its own angles, a cache of fp16.
PLAIN = ("--rounding", "attn.?_rope=fused", "--rounding", "attn.out=fused")
# A run: dtype, attention, what it computes as. Then the presets under which it is clean, and those
# under which it is not, with the first op that rounds otherwise: of these the first alone is tried,
# unless all are asked for.
RUNS = {
    "transformers": ("bf16", "sdpa", (), ("hf",), {
        "vllm-0.19": (0, "attn.q_rope"), "sglang": (0, "attn.norm"), "hf-eager": (0, "attn.out")}),
    "eager": ("bf16", "eager", (), ("hf-eager",), {"hf": (0, "attn.out")}),
    "vllm": ("bf16", "sdpa", ("rope-low-tables-once", "norm-fused"), ("vllm",), {
        "vllm-0.19": (0, "attn.norm")}),
    "vllm-0.19": ("bf16", "sdpa", ("rope-low-tables-once",), ("vllm-0.19",), {
        "hf": (0, "attn.q_rope"), "vllm": (0, "attn.norm")}),
    "sglang": ("bf16", "sdpa", ("add-norm-fused", *FUSED), ("sglang", "trt-llm"), {
        "fused": (0, "attn.out")}),
    "fused": ("bf16", "sdpa", ("norm-fused", "attention-fp32", *FUSED), ("fused",), {
        "hf": (0, "attn.norm")}),
    "llama.cpp": ("fp32", "sdpa", (operands(torch.bfloat16),), ("llama.cpp",), {
        "fused": (0, "attn.q")}),
    "llama.cpp-f16": ("fp32", "sdpa", (operands(torch.float16),), ("llama.cpp-f16",), {
        "llama.cpp": (0, "attn.q")}),
}


class Presets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "x.h5"

    def run_of(self, dtype, attention, variants):
        model = capture.load(QWEN3, dtype, attention)
        variants = [VARIANTS[v] if isinstance(v, str) else v for v in variants]
        runner = Runner(model, Plan((capture.prompt_of(QWEN3, 24 if WHOLE else 18),), 1))
        with patches.together(variant.patch(model) for variant in variants):
            runner.run()
        # Declared as something else than the presets, which take its place.
        trace_file.write(self.path, capture.trace_of(model, runner, {}, {"attn.norm": "fused"}))

    @staticmethod
    def over(preset):
        return PLAIN if preset.startswith("llama.cpp") else ()

    def judged(self, *options):
        return judging.judge(LOCKSTEP, self.path, QWEN3, *options)

    def test_each_is_right_where_the_ops_round_so_and_wrong_where_they_do_not(self):
        for name, (dtype, attention, variants, right, wrong) in RUNS.items():
            self.run_of(dtype, attention, variants)
            for preset in right:
                with self.subTest(run=name, preset=preset):
                    found = self.judged("--schema", preset, *self.over(preset))
                    self.assertEqual((found.status, found.verdict), (0, "clean"), found.story)
            for preset, place in itertools.islice(wrong.items(), None if WHOLE else 1):
                with self.subTest(run=name, preset=preset):
                    # The first finding is what is asked for: neither the decode pass nor a later
                    # layer can have it.
                    found = self.judged("--schema", preset, *FIRST, *self.over(preset))
                    self.assertEqual((found.status, found.place), (1, place), found.story)

    def test_a_point_is_set_over_the_preset(self):
        self.run_of("bf16", "sdpa", ("rope-low-tables-once",))
        over = ("--rounding", "attn.?_rope=tables_rounded")
        self.assertEqual(self.judged("--schema", "hf", *over).verdict, "clean")
        over = ("--rounding", "mlp.norm=fused")
        self.assertEqual(self.judged("--schema", "vllm-0.19", *FIRST, *over).place,
                         (0, "mlp.norm"))


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop()
    unittest.main()
