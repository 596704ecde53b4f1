"""Traces that lack points: right runs are clean, and the first region that holds a bug is named.

python regions_test.py LOCKSTEP, the program that judges. A small part of what table.py runs, and
the cases of begins_test.py: to load transformers takes longer than they do.
"""
import dataclasses
import os
import pathlib
import sys
import tempfile
import unittest

import torch

import begins_test
import cases
import outcomes
from bugs import BUGS
from cases import Setting
from outcomes import CLEAN, LATER, MISSED, RIGHT, UNSURE
from selections import SELECTIONS, Regions, suspects
from variants import VARIANTS

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
WHOLE = "LOCKSTEP_WHOLE" in os.environ
FIRST, SECOND = (str(DATA / name) for name in (
    ("bard-qwen3", "bard-qwen2.5") if WHOLE else ("tiny/qwen3-default", "tiny/qwen2-default")))
QWEN3 = Setting(FIRST, "bf16", "sdpa", count=12, steps=1)
QWEN25 = Setting(SECOND, "bf16", "sdpa", count=12, steps=1)
FP32 = Setting(FIRST, "fp32", "sdpa", count=12, steps=1)


class Judged(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name) / "case.h5"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, setting, case, selections, wanted, ways=(True,)):
        for outcome in outcomes.outcomes_of(LOCKSTEP, self.path, setting, case, selections, ways):
            with self.subTest(case=case.name, selection=outcome.selection,
                              declared=outcome.declared):
                self.assertIn(outcome.outcome, wanted, outcome.verdict.story)

    def test_right_runs_are_clean(self):
        for setting, name, selections, ways in (
                (QWEN3, "plain", ["streams"], (True,)),
                (QWEN3, "norm-fused", ["modules"], (True, False)),
                (QWEN25, "add-norm-fused", ["six"], (True,)),
                (QWEN3, "attention-flash", ["modules"], (True,)),
                (FP32, "attention-split-kv", ["six"], (False,)),
                (FP32, "linear-tf32-declared", ["six"], (True,))):
            self.check(setting, VARIANTS[name], selections, {CLEAN}, ways)

    def test_bugs_are_named_by_the_first_region_that_holds_them(self):
        for setting, name, selections in (
                (QWEN3, "rope-interleaved", ["half", "six"]),
                (QWEN25, "gqa-interleaved", ["modules", "streams"]),
                (QWEN3, "cache-values-late", ["six"]),
                (QWEN25, "attn-residual-missing", ["modules"]),
                (FP32, "act-gelu", ["six"])):
            self.check(setting, BUGS[name], selections, {RIGHT, LATER})

    def test_tokens_alone_name_no_op_where_a_region_is_wide(self):
        # Where a processor's LibTorch rounds otherwise, no token differs: nothing is left to say.
        setting = dataclasses.replace(QWEN25, folder=str(DATA / "bard-qwen2.5"), count=40, steps=2)
        self.check(setting, BUGS["rope-frequencies-in-bf16"], ["six"], {UNSURE, MISSED})


class Graph(unittest.TestCase):
    """Which place is to be named of a bug, as this test works it out."""

    @classmethod
    def setUpClass(cls):
        runner = cases.run_bug(Setting(QWEN3.folder, "bf16", "sdpa", 3, 1), BUGS["embed-scaled"])
        cls.graph = cases.trace_of(QWEN3, runner, None, None, {}).graph

    def suspects(self, selection, *wrong):
        return suspects(Regions(self.graph, SELECTIONS[selection]), wrong)

    def test_first_suspects(self):
        for selection, wrong, first in (
                ("all", (0, (2, "attn.q_rope")), (2, "attn.q_rope")),
                ("six", (0, (2, "attn.q_rope")), (2, "attn.out")),
                ("modules", (0, (2, "attn.out")), (2, "attn.o")),
                ("modules", (0, (2, "attn.residual")), (2, "mlp.norm")),
                ("streams", (0, (2, "attn.norm")), (2, "attn.residual")),
                ("streams", (0, (-1, "final.norm")), (-1, "logits")),
                ("half", (0, (2, "attn.kv")), (2, "attn.out"))):
            with self.subTest(selection=selection, wrong=wrong):
                self.assertEqual(self.suspects(selection, wrong).first, (0, first))

    def test_what_went_into_a_cache_is_a_suspect_later(self):
        wrong = [(0, (2, "attn.k_rope")), (1, (2, "mlp.up"))]
        found = self.suspects("six", *wrong).all
        self.assertEqual(found, {(0, (2, "attn.out")), (1, (2, "attn.out")),
                                 (1, (2, "mlp.residual"))})


def load_tests(loader, own, _pattern):
    """The cases of this file and of the other."""
    return unittest.TestSuite((own, loader.loadTestsFromModule(begins_test)))


if __name__ == "__main__":
    LOCKSTEP = begins_test.LOCKSTEP = sys.argv.pop()
    unittest.main()
