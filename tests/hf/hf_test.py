"""Traces of Hugging Face transformers: right ones are clean, and bugs are named at their op.

python hf_test.py LOCKSTEP, the program that judges. A small part of what hf_table.py runs, and the
cases of presets_test.py and layouts_test.py: to load transformers takes longer than most of them.
"""
import concurrent.futures
import dataclasses
import functools
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

import capture
import judging
import layouts_test
import presets_test
import trace_file
from bugs import BUGS
from variants import VARIANTS

TESTS = pathlib.Path(__file__).resolve().parent.parent
WHOLE = "LOCKSTEP_WHOLE" in os.environ
QWEN3, QWEN25 = (str(TESTS / "data" / name) for name in (
    ("bard-qwen3", "bard-qwen2.5") if WHOLE else ("tiny/qwen3-default", "tiny/qwen2-default")))
EXPERTS = str(TESTS / "data/tiny/qwen3-moe")
# A prompt and a decode pass: later ones show no other op, and cost as much each.
Setting = functools.partial(judging.Setting, count=29 if WHOLE else 18, steps=1)

NAMED = {
    Setting(QWEN3, "bf16", "sdpa"): (
        "q-norm-whole-row", "rope-interleaved", "rope-position-plus-one-in-decode",
        "rope-angles-in-bf16", "mask-one-ahead", "scale-missing", "gqa-interleaved",
        "cache-last-key-stale", "attn-residual-missing"),
    Setting(QWEN25, "bf16", "sdpa"): (
        "norm-mean-subtracted", "q-bias-missing", "down-rows-shifted", "v-toward-zero",
        "act-gelu", "embed-next-id", "head-one-row-stale", "token-runner-up"),
    Setting(EXPERTS, "fp32", "sdpa"): ("experts-not-normalised", "experts-off-by-one")}
# Wherever 1 + tanh cancels, a right SiLU is off by more than its own size lets expect.
RIGHT = ("act-by-tanh", "attention-flash", "attention-split-kv-rounded", "norm-fused",
         "rope-fp32-once", "batch-padded")


class Judged(unittest.TestCase):
    """Each case is one run of a model, one trace, and what the judge says of it.

    Traces are judged while the next runs are made: what is asked is first put into a list.
    """

    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.folder = tempfile.TemporaryDirectory()
        cls.paths = (pathlib.Path(cls.folder.name) / f"{i}.h5" for i in itertools.count())
        cls.pool = concurrent.futures.ThreadPoolExecutor(2)

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()
        cls.folder.cleanup()

    def judge(self, setting, runner, rounding):
        """What the judge is going to say; rounding None declares none."""
        schema = None if rounding is None else capture.declared_rounding(setting.attention,
                                                                         rounding)
        trace = capture.trace_of(setting.model(), runner, {"attention": setting.attention}, schema)
        path = next(self.paths)
        trace_file.write(path, trace)
        return self.pool.submit(judging.judge, LOCKSTEP, path, setting.folder)

    def judge_variant(self, setting, name, rounding):
        return self.judge(setting, judging.run_variant(setting, VARIANTS[name]), rounding)

    def assert_clean(self, asked):
        """Of pairs of a name and a verdict to come."""
        for name, verdict in asked:
            with self.subTest(case=name):
                found = verdict.result()
                self.assertEqual((found.status, found.verdict), (0, "clean"), found.story)


class Clean(Judged):
    def test_recording_changes_no_bit(self):
        for folder in (QWEN3, QWEN25):
            setting = Setting(folder, "bf16", "sdpa")
            runner = judging.run_variant(setting, VARIANTS["plain"])
            self.assertTrue(capture.same_logits(setting.model(), runner))
            self.assertIsNone(judging.first_wrong(setting.model(), runner.passes))

    def test_right_runs_are_clean_declared_and_undeclared(self):
        asked = []
        for folder in (QWEN3, QWEN25):
            eager = "bf16" if folder == QWEN3 else "fp32"
            for dtype, attention in (("bf16", "sdpa"), (eager, "eager")):
                setting = Setting(folder, dtype, attention)
                ways = ({}, None) if dtype == "bf16" else (None,)
                if not WHOLE:
                    ways = ways[-1:] if attention == "eager" else ways[:1]
                for rounding in ways:
                    asked.append(((setting, "undeclared" if rounding is None else "declared"),
                                  self.judge_variant(setting, "plain", rounding)))
        self.assert_clean(asked)

    def test_other_right_kernels_are_clean_as_they_are_declared(self):
        setting = Setting(QWEN3, "bf16", "sdpa")
        self.assert_clean([(name, self.judge_variant(setting, name, VARIANTS[name].rounding))
                           for name in RIGHT])
        setting = Setting(QWEN3, "fp32", "sdpa")
        self.assert_clean([("act-by-tanh", self.judge_variant(setting, "act-by-tanh", None))])

    def test_a_query_that_is_scaled_and_stored_is_clean_in_eager_attention(self):
        """Heads of 32, whose scale is no power of two."""
        setting = Setting(QWEN25, "bf16", "eager")
        scaled = VARIANTS["scale-on-q-eager"].rounding
        self.assert_clean([(rounding, self.judge_variant(setting, "scale-on-q-eager", rounding))
                           for rounding in (scaled, None)])

    def test_k_and_v_that_a_trace_lacks_are_those_that_it_shows(self):
        """No hook sees what attention reads; it is judged on what the projections made."""
        setting = Setting(QWEN25, "bf16", "sdpa")
        self.assert_clean([("without-kv", self.judge_variant(setting, "without-kv", {}))])

    def test_a_published_shape_with_outlier_channels_is_clean(self):
        folder = pathlib.Path(self.folder.name) / "qwen3-0.6b"
        subprocess.run([sys.executable, TESTS / "tools/synthetic_checkpoint.py", "qwen3-0.6b",
                        folder, "--layers", "1", "--vocab", "4096"], check=True)
        setting = Setting(str(folder), "bf16", "sdpa", count=12)
        self.assert_clean([(name, self.judge_variant(setting, "plain", rounding))
                           for name, rounding in (("declared", {}), ("undeclared", None))
                           if WHOLE or rounding is None])
        # Heads of 128, whose scale is no power of two: q times it is another number when rounded.
        scaled = VARIANTS["scale-on-q"].rounding
        self.assert_clean([("scale-on-q", self.judge_variant(setting, "scale-on-q", rounding))
                           for rounding in (scaled, None)])


class Named(Judged):
    def test_bugs_are_named_at_their_op(self):
        """Each does something at its own op first, and the judge names that op in that pass."""
        asked = []
        for setting, names in NAMED.items():
            model = setting.model()
            for name in names:
                runner = judging.run_bug(setting, BUGS[name])
                number, place = judging.first_wrong(model, runner.passes)
                self.assertEqual(place, BUGS[name].place(model))
                asked.append((name, place, number, self.judge(setting, runner, {})))
        for name, place, number, verdict in asked:
            with self.subTest(bug=name):
                found = verdict.result()
                self.assertEqual((found.status, found.place, found.number), (1, place, number),
                                 found.story)

    def test_a_bug_is_named_undeclared_too(self):
        setting = Setting(QWEN3, "bf16", "eager")
        bug = BUGS["head-dead"]
        verdict = self.judge(setting, judging.run_bug(setting, bug), None).result()
        self.assertEqual(verdict.place, bug.place(setting.model()), verdict.story)

    def test_a_gain_that_has_one_more_is_said_to_be_the_cause(self):
        """A norm that was patched to be Gemma's, of a checkpoint that has the gains themselves."""
        for dtype in ("bf16", "fp32"):
            setting = Setting(QWEN3, dtype, "sdpa")
            bug = BUGS["norm-weight-plus-one"]
            verdict = self.judge(setting, judging.run_bug(setting, bug), {}).result()
            self.assertEqual(verdict.place, bug.place(setting.model()), verdict.story)
            self.assertIn("RMSNorm with the gain 1 + w", verdict.looks_like)

    def test_a_token_that_was_not_fed_is_wrong_at_the_embedding(self):
        setting = Setting(QWEN25, "bf16", "sdpa")
        runner = judging.run_variant(setting, VARIANTS["plain"])
        runner.passes[0].rows[5] = dataclasses.replace(runner.passes[0].rows[5], token=1)
        verdict = self.judge(setting, runner, {}).result()
        self.assertEqual(verdict.place, (-1, "embed"), verdict.story)


def load_tests(loader, own, _pattern):
    """The cases of this file and of the two others."""
    return unittest.TestSuite((own, *map(loader.loadTestsFromModule, (presets_test,
                                                                      layouts_test))))


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop()
    presets_test.LOCKSTEP = layouts_test.LOCKSTEP = LOCKSTEP
    unittest.main()
