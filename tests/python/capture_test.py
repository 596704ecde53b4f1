"""What capture sees of Hugging Face's models is clean, changes no bit, and is put back.

python capture_test.py LOCKSTEP. capture_table.py is the long form of it.
"""
import pathlib
import subprocess
import sys
import unittest

import numpy as np
import torch

import support
from support import EXPERTS, QWEN3, QWEN25, SLIDING, InFolder, load, padded, tokens

import lockstep
from lockstep.patches import modeling_of

torch.set_num_threads(1)


class Captured(InFolder):
    def captured(self, model, run, **options):
        """What run(model) returns under capture, which is what it returns without."""
        path = self.folder / "x.h5"
        plain = run(model)
        with lockstep.capture(model, path, **options):
            made = run(model)
        self.assertTrue(torch.equal(plain, made))
        return path

    def assert_clean(self, path, folder):
        verdict = lockstep.judge(path, folder)
        self.assertTrue(verdict, verdict)
        self.assertEqual(verdict.judged, verdict.expected)
        return verdict


def generated(ids, new=3, **options):
    options = {"do_sample": False, "max_new_tokens": new} | options
    return lambda model: model.generate(ids, **options)


class Clean(Captured):
    def test_generate_with_left_padding_and_a_static_cache(self):
        ids, mask = padded([5, 23, 12], 4096)
        path = self.captured(load(QWEN3), generated(ids, attention_mask=mask,
                                                    cache_implementation="static"))
        self.assert_clean(path, QWEN3)
        with lockstep.Trace(path) as trace:
            self.assertEqual([len(r.prompt) for r in trace.requests], [5, 23, 12])
            self.assertEqual([len(r.tokens) for r in trace.requests], [3, 3, 3])
            self.assertEqual([len(p.rows) for p in trace.passes], [40, 3, 3])
            self.assertEqual(trace.schema["attn.out"], "hf")

    def test_eager_attention_and_two_calls(self):
        first, second = tokens(9, 1, 4096), tokens(14, 2, 4096)
        path = self.captured(load(QWEN25, attention="eager"), lambda model: torch.cat(
            [generated(first)(model), generated(second)(model)], 1))
        self.assert_clean(path, QWEN25)
        with lockstep.Trace(path) as trace:
            self.assertEqual([r.prompt for r in trace.requests],
                             [first[0].tolist(), second[0].tolist()])
            self.assertEqual(trace.schema["attn.out"], "eager")

    def test_a_loop_in_fp32_that_feeds_chunks_and_forces(self):
        from transformers import DynamicCache
        ids = tokens(24, 3, 4096)

        @torch.no_grad()
        def loop(model):
            cache = DynamicCache(config=model.config)
            for part in (ids[:, :9], ids[:, 9:21], ids[:, 21:22], ids[:, 22:23], ids[:, 23:]):
                made = model(part, past_key_values=cache).logits
            return made

        path = self.captured(load(QWEN3, "float32"), loop)
        self.assert_clean(path, QWEN3)
        with lockstep.Trace(path) as trace:
            self.assertEqual(trace.requests[0].forced, ids[0, 21:].tolist())
            self.assertEqual(trace.dtype, "fp32")
            self.assertEqual(trace["logits"].shape[0], 24)

    def test_tokens_that_are_drawn(self):
        torch.manual_seed(7)
        state = torch.get_rng_state()

        def drawn(model):
            torch.set_rng_state(state)
            return generated(tokens(8, 4, 320), 4, do_sample=True, temperature=2.0)(model)

        path = self.captured(load(SLIDING), drawn)
        self.assert_clean(path, SLIDING)
        with lockstep.Trace(path) as trace:
            self.assertTrue(trace.requests[0].sampled)
            self.assertNotEqual(trace.requests[0].tokens, trace.requests[0].argmax)

    def test_experts_however_they_are_computed(self):
        ids, mask = padded([9, 4], 320)
        for way in ("eager", "grouped_mm", "batched_mm"):
            with self.subTest(way=way):
                model = load(EXPERTS, experts_implementation=way)
                path = self.captured(model, generated(ids, 2, attention_mask=mask))
                self.assert_clean(path, EXPERTS)

    def test_a_sliding_window_and_no_cache(self):
        path = self.captured(load(SLIDING), generated(tokens(30, 5, 320), 3))
        self.assert_clean(path, SLIDING)
        path = self.captured(load(SLIDING), generated(tokens(30, 5, 320), 2, use_cache=False))
        self.assert_clean(path, SLIDING)

    def test_sequences_that_end_early_are_left_out_from_there(self):
        model = load(QWEN3)
        ids = torch.cat([tokens(6, 1, 4096), tokens(6, 2, 4096)])
        free = generated(ids, 4)(model)
        end = int(free[0, 7])  # the second token of the first sequence
        path = self.captured(model, generated(ids, 4, eos_token_id=end, pad_token_id=0))
        self.assert_clean(path, QWEN3)
        with lockstep.Trace(path) as trace:
            self.assertEqual(trace.requests[0].tokens[-1], end)
            self.assertLess(len(trace.requests[0].tokens), len(trace.requests[1].tokens))


class Wrong(Captured):
    def test_a_bug_is_named(self):
        """The cache of layer 2 is overwritten in place between two steps: nothing computes it."""
        model = load(QWEN3)

        @torch.no_grad()
        def run(model):
            from transformers import DynamicCache
            cache = DynamicCache(config=model.config)
            made = model(tokens(10, 1, 4096), past_key_values=cache).logits
            cache.layers[2].values[0, 1, 4, 7] += 1
            return model(made[:, -1:].argmax(-1), past_key_values=cache).logits

        verdict = lockstep.judge(self.captured(model, run), QWEN3)
        self.assertEqual((verdict.first.place, verdict.first.index),
                         ("layer 2 attn.kv", (4, 1, 1, 7)), verdict)

    def test_a_wrong_kernel_is_named(self):
        model = load(QWEN25)
        act = model.model.layers[1].mlp.act_fn
        model.model.layers[1].mlp.act_fn = torch.nn.GELU()
        path = self.captured(model, generated(tokens(12, 1, 4096), 2))
        model.model.layers[1].mlp.act_fn = act
        self.assertEqual(lockstep.judge(path, QWEN25).first.place, "layer 1 mlp.act")


class PutBack(Captured):
    def parts(self, model):
        modeling = modeling_of(model.model)
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        return (modeling.apply_rotary_pos_emb, modeling.ALL_ATTENTION_FUNCTIONS, hooks,
                set(vars(model)))

    def test_after_the_block_and_after_an_exception(self):
        model = load(QWEN3)
        before = self.parts(model)
        self.captured(model, generated(tokens(4, 1, 4096), 2))
        self.assertEqual(self.parts(model), before)
        with self.assertRaises(KeyboardInterrupt), \
                lockstep.capture(model, self.folder / "y.h5"):
            generated(tokens(4, 1, 4096), 2)(model)
            raise KeyboardInterrupt
        self.assertEqual(self.parts(model), before)
        self.assertFalse(list(self.folder.glob("y*")))

    def test_some_points_of_some_layers(self):
        path = self.captured(load(QWEN3), generated(tokens(4, 1, 4096), 2),
                             points=("mlp.up", "mlp.norm"), layers=(1, 4))
        with lockstep.Trace(path) as trace:
            self.assertEqual({(t.point, t.layer) for t in trace.tensors},
                             {(p, i) for p in ("mlp.up", "mlp.norm") for i in (1, 4)})

    def test_what_cannot_be_captured_is_a_sentence(self):
        model, ids = load(QWEN3), tokens(4, 1, 4096)
        path = self.folder / "z.h5"
        with lockstep.capture(model, path):
            self.refused("beams", generated(ids, num_beams=2), model)
            self.refused("input_ids", model, inputs_embeds=model.model.embed_tokens(ids))
            generated(ids, 1)(model)
        self.refused("is no point", lambda: lockstep.capture(model, path, points=("mlp.upp",))
                     .__enter__())


class Example(InFolder):
    def test_from_a_script_to_a_verdict(self):
        script = support.PACKAGE / "examples/judge_hugging_face.py"
        code = [line for line in script.read_text().split('"""')[2].splitlines() if line.strip()]
        self.assertLessEqual(len(code), 10)
        made = subprocess.run([sys.executable, "-B", script, QWEN3], cwd=self.folder, check=True,
                              capture_output=True, text=True,
                              env={**support.os.environ, "PYTHONPATH": str(support.PACKAGE)})
        self.assertRegex(made.stdout, r"^clean: No bug: (\d+) of \1 nodes")


if __name__ == "__main__":
    support.main()
