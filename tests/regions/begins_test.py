"""Traces that begin or end in the middle: at decode, with logits of the last row, in other types.

python begins_test.py LOCKSTEP, the program that judges.
"""
import dataclasses
import pathlib
import sys
import tempfile
import unittest

import torch

import cases
import outcomes
from cases import Runner, Setting
from lockstep import Request, Writer
from selections import SELECTIONS
from trace_file import place_order
from variants import VARIANTS

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
QWEN3 = Setting(str(DATA / "tiny/qwen3-default"), "bf16", "sdpa", count=24, steps=3)


def write(path, trace, inherited, requests):
    """The trace as trace_file.write has it, of requests that enter it with these tokens."""
    path.unlink(missing_ok=True)
    with Writer(path, graph=trace.graph, dtype=trace.dtype, schema=trace.schema,
                provenance=trace.provenance) as writer:
        writer.requests = requests
        for number, run in enumerate(trace.passes):
            rows = run.rows
            writer.begin_pass([row.token for row in rows], [row.position for row in rows],
                              [row.request for row in rows], logit_rows=run.logit_rows,
                              decode=[row.decode for row in rows],
                              inherited=inherited if number == 0 else None)
            caches = {(layer, "attn.kv") for layer, _ in run.caches}
            for layer, point in sorted(set(run.tensors) | caches, key=place_order):
                if point != "attn.kv":
                    writer.show(point, layer, run.tensors[layer, point])
                    continue
                for (of, request), tensor in sorted(run.caches.items()):
                    if of == layer:
                        writer.show_cache(layer, request, tensor)


class Begins(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "x.h5"

    def judged(self):
        return outcomes.judge(LOCKSTEP, self.path, QWEN3.folder)

    def decoded(self, prefill=None, change=lambda runner: None, kept=None):
        """A trace of decode alone, by Hugging Face, after a prefill as that variant computes it."""
        model, plan = QWEN3.model(), QWEN3.plan()
        prompt = list(plan.prompts[0])
        runner = Runner(model, plan)
        with VARIANTS[prefill].patch(model) if prefill else torch.no_grad():
            runner.plan = dataclasses.replace(plan, steps=0)
            runner.run()
        change(runner)
        with torch.no_grad(), runner.recorder.watching():
            first = token = runner.requests[0].tokens.pop()
            for _ in range(QWEN3.steps):
                token = int(runner.step(torch.tensor([[token]]), decode=True)[0])
        del runner.passes[0]
        trace = cases.trace_of(QWEN3, runner, kept, {}, {})
        fed = [run.rows[0].token for run in trace.passes]
        write(self.path, trace, {0: prompt},
              [Request(0, prompt, [*fed, token], forced=[first])])
        return self.judged()

    def test_a_trace_that_begins_at_decode_is_clean_with_a_note(self):
        for prefill in (None, "norm-fused"):  # the engine itself, and another
            with self.subTest(prefill=prefill):
                verdict = self.decoded(prefill)
                self.assertEqual(verdict.verdict, "clean", verdict.story)
                self.assertIn("positions 0 to 23 of request 0 were in the cache before",
                              " ".join(verdict.notes))

    def test_what_was_given_is_not_known_where_no_cache_was_recorded(self):
        kept = frozenset(SELECTIONS["six"])
        verdict = self.decoded(kept=kept)
        self.assertEqual(verdict.verdict, "inconclusive", verdict.story)
        self.assertIn("no pass of the trace computes position 0 of request 0", verdict.story)

    def test_logits_of_fp32_beside_a_run_of_16_bits(self):
        model = QWEN3.model()
        runner = Runner(model, dataclasses.replace(QWEN3.plan(), forced=(5, 6, 7)))
        runner.run()
        request, weight = runner.requests[0], model.lm_head.weight.detach().float()
        request.argmax.clear()
        for run in runner.passes:
            rows = run.tensors[-1, "final.norm"]
            rows = rows if len(rows) == len(run.logit_rows) else rows[run.logit_rows]
            run.tensors[-1, "logits"] = rows.float() @ weight.T
            run.tensors[-1, "token"] = run.tensors[-1, "logits"].argmax(-1).to(torch.int32)
            request.argmax.append(int(run.tensors[-1, "token"][-1]))
        request.tokens[-1] = request.argmax[-1]
        for selection in ("all", "streams"):
            with self.subTest(selection=selection):
                trace = cases.trace_of(QWEN3, runner, SELECTIONS[selection], {}, {})
                write(self.path, trace, None, [request])
                verdict = self.judged()
                self.assertEqual(verdict.verdict, "clean", verdict.story)

    def test_logits_of_fp32_that_are_wrong(self):
        model = QWEN3.model()
        runner = Runner(model, dataclasses.replace(QWEN3.plan(), steps=1))
        runner.run()
        run = runner.passes[0]
        rows = run.tensors[-1, "final.norm"]
        rows = rows if len(rows) == len(run.logit_rows) else rows[run.logit_rows]
        run.tensors[-1, "logits"] = rows.float() @ model.lm_head.weight.detach().float().T
        run.tensors[-1, "logits"][0, 9] += 2e-3
        del runner.passes[1:]
        runner.requests[0].tokens = [int(run.tensors[-1, "logits"].argmax())]
        write(self.path, cases.trace_of(QWEN3, runner, None, {}, {}), None,
              [Request(0, runner.requests[0].prompt)])
        verdict = self.judged()
        self.assertEqual(verdict.place, (-1, "logits"), verdict.story)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop()
    unittest.main()
