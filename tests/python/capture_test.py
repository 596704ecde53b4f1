"""What capture sees of Hugging Face's models is clean, changes no bit, and is put back.

python capture_test.py LOCKSTEP. capture_table.py is the long form of it.
"""
import contextlib
import io
import runpy
import subprocess
import sys
import unittest.mock

import torch
from transformers import DynamicCache

import support
from support import EXPERTS, QWEN3, QWEN25, SLIDING, InFolder, load, padded, tokens

import lockstep
from lockstep.patches import modeling_of
from lockstep.verdict import find_command

torch.set_num_threads(1)


class Captured(InFolder):
    def captured(self, model, run, **options):
        """What run(model) returns under capture, which is what it returns without."""
        path = self.folder / "x.h5"
        path.unlink(missing_ok=True)
        plain = run(model)
        with lockstep.capture(model, path, **options):
            made = run(model)
        self.assertTrue(torch.equal(plain, made))
        return path

    def called(self, *words):
        made = subprocess.run([find_command(), *map(str, words)], capture_output=True, text=True,
                              check=False)
        return made.returncode, made.stdout + made.stderr

    def assert_clean(self, path, folder):
        verdict = lockstep.judge(path, folder)
        self.assertTrue(verdict, verdict)
        self.assertEqual(verdict.judged, verdict.expected)
        return verdict


def generated(ids, new=3, **options):
    options = {"do_sample": False, "max_new_tokens": new} | options
    return lambda model: model.generate(ids, **options)


@torch.no_grad()
def forced_loop(model):
    """Chunks of a prompt, then tokens that are fed whatever was most likely."""
    ids, cache = tokens(14, 3, 4096), DynamicCache(config=model.config)
    for part in (ids[:, :5], ids[:, 5:11], ids[:, 11:12], ids[:, 12:13], ids[:, 13:]):
        made = model(part, past_key_values=cache).logits
    return made[0]


class Replayed(Captured):
    """One op of a captured trace again, and in a folder of its own."""

    def captured_with_bug(self, **options):
        """The tail of the inputs of a product is left out."""
        model = load(QWEN3)
        hook = model.model.layers[1].mlp.down_proj.register_forward_hook(
            lambda module, x, out: torch.nn.functional.linear(x[0][..., :-64],
                                                              module.weight[:, :-64]))
        try:
            return self.captured(model, generated(tokens(9, 1, 300)), **options)
        finally:
            hook.remove()

    def test_a_wrong_op_is_replayed_and_shown_alone(self):
        path = self.captured_with_bug()
        place = ("--model", QWEN3, "--layer", 1, "--point")
        for right in ("mlp.norm", "attn.out", "attn.kv"):
            status, screen = self.called("replay", path, *place, right)
            self.assertEqual(status, 0, screen)
        status, screen = self.called("replay", path, *place, "mlp.down")
        self.assertEqual(status, 1, screen)
        self.assertIn("the trace computed it wrong, lockstep right", " ".join(screen.split()))
        bug = self.folder / "bug"
        status, screen = self.called("repro", path, "--model", QWEN3, "--first", "--out", bug)
        self.assertEqual(status, 0, screen)
        self.assertIn("its own op is right on the case", screen)
        ran = subprocess.run([sys.executable, bug / "repro.py"], capture_output=True, text=True,
                             check=False)
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)

    def test_what_lockstep_s_op_is_held_to_is_its_own_rounding(self):
        model = load(QWEN3)
        norm = model.model.layers[2].post_attention_layernorm
        with unittest.mock.patch.object(norm, "variance_epsilon", 1e-2):
            path = self.captured(model, generated(tokens(9, 1, 300)))
        bug = self.folder / "bug"
        status, screen = self.called("repro", path, "--model", QWEN3, "--first", "--out", bug)
        self.assertEqual(status, 0, screen)
        self.assertIn("its own op is right on the case", screen)
        self.assertIn("rounds inside as `hf`", (bug / "README.md").read_text())

    def test_inputs_that_were_not_shown_are_named(self):
        path = self.captured_with_bug(points=["mlp.norm", "mlp.down", "attn.residual"])
        status, screen = self.called("replay", path, "--model", QWEN3, "--layer", 1, "--point",
                                     "mlp.down")
        self.assertEqual(status, 2, screen)
        self.assertIn("the numbers of layer 1 mlp.act were not kept; name an op", screen)
        self.assertEqual(self.called("replay", path, "--model", QWEN3, "--layer", 1, "--point",
                                     "mlp.norm")[0], 0)


class Clean(Captured):
    """A trace holds many requests, so that each model is judged once for all that it did."""

    def test_generate_in_many_ways(self):
        ids, mask = padded([5, 13, 9], 4096)
        model, end = load(QWEN3), 0
        pair = torch.cat([tokens(6, 1, 4096), tokens(6, 2, 4096)])
        end = int(generated(pair, 4)(model)[0, 7])  # the second token of the first sequence
        torch.manual_seed(7)
        state = torch.get_rng_state()

        def run(model):
            torch.set_rng_state(state)
            return torch.cat([made.flatten() for made in (
                generated(ids, attention_mask=mask, cache_implementation="static")(model),
                generated(pair, 4, eos_token_id=end, pad_token_id=0)(model),
                generated(tokens(8, 4, 4096), 4, do_sample=True, temperature=3.0)(model),
                forced_loop(model).argmax(-1))])

        path = self.captured(model, run)
        self.assert_clean(path, QWEN3)
        with lockstep.Trace(path) as trace:
            padded_, ended, drawn, forced = (trace.requests[i] for i in (slice(3), slice(3, 5),
                                                                        5, 6))
            self.assertEqual([len(r.prompt) for r in padded_], [5, 13, 9])
            self.assertEqual([len(r.tokens) for r in padded_], [3, 3, 3])
            self.assertEqual([len(p.rows) for p in trace.passes[:3]], [27, 3, 3])
            self.assertEqual(ended[0].tokens[-1], end)
            self.assertEqual([len(r.tokens) for r in ended], [2, 4])
            self.assertTrue(drawn.sampled)
            self.assertNotEqual(drawn.tokens, drawn.argmax)
            self.assertEqual(forced.forced, tokens(14, 3, 4096)[0, 11:].tolist())
            self.assertEqual(trace.schema["attn.out"], "hf")

    def test_drafts_that_are_refused(self):
        """One draft of three is what the model chooses, in every other call."""
        ids, model = tokens(24, 6, 4096), load(QWEN3)
        greedy, calls = generated(ids, 6)(model), []

        def drafted(_self, ids, *_args, **_options):
            calls.append(ids.shape[1])
            wrong = tokens(3, len(calls), 4096)
            wrong[0, 0] = greedy[0, min(calls[-1], 29)] if len(calls) % 2 else wrong[0, 0]
            return torch.cat([ids, wrong], 1), None

        with unittest.mock.patch("transformers.generation.candidate_generator."
                                 "PromptLookupCandidateGenerator.get_candidates", drafted):
            path = self.captured(model, generated(ids, 6, prompt_lookup_num_tokens=3,
                                                  eos_token_id=None))
        self.assert_clean(path, QWEN3)
        with lockstep.Trace(path) as trace:
            self.assertEqual(trace.requests[0].tokens, greedy[0, 24:].tolist())
            self.assertEqual(trace.requests[0].forced, [])
            self.assertGreater(max(len(run.rows) for run in trace.passes[1:]), 1)

    def test_eager_attention(self):
        path = self.captured(load(QWEN25, attention="eager"), generated(tokens(9, 1, 4096)))
        self.assert_clean(path, QWEN25)
        with lockstep.Trace(path) as trace:
            self.assertEqual(trace.schema["attn.out"], "eager")

    def test_fp32(self):
        path = self.captured(load(QWEN3, "float32"), forced_loop)
        self.assert_clean(path, QWEN3)
        with lockstep.Trace(path) as trace:
            self.assertEqual((trace.dtype, trace["logits"].shape[0]), ("fp32", 14))

    def test_experts_whose_products_are_calls(self):
        ids, mask = padded([9, 4], 320)
        for way in ("eager", "grouped_mm"):
            with self.subTest(way=way):
                model = load(EXPERTS, experts_implementation=way)
                path = self.captured(model, generated(ids, 2, attention_mask=mask))
                self.assert_clean(path, EXPERTS)

    def test_a_sliding_window_and_no_cache(self):
        ids = tokens(30, 5, 320)
        path = self.captured(load(SLIDING), lambda model: torch.cat([
            generated(ids)(model), generated(ids[:, 1:], 2, use_cache=False)(model)], 1))
        self.assert_clean(path, SLIDING)


    def test_tensors_of_a_device_are_kept_as_those_of_the_host(self):
        """There they are copied one by one and brought over together; here by a pretence."""
        model, seen = load(QWEN3), []
        ids, mask = padded((5, 9), 4096)
        for host in (True, False):
            with unittest.mock.patch.object(torch.Tensor, "is_cpu", property(lambda _: host)):
                path = self.captured(model, generated(ids, 3, attention_mask=mask))
            with lockstep.Trace(path) as trace:
                seen.append((trace.index(), [trace.bits(info).bits.tobytes()
                                             for info in trace.tensors if info.path]))
        self.assertTrue(seen[0][0].equals(seen[1][0]))
        self.assertEqual(len(seen[0][1]), 3 * (6 * 17 + 4))
        self.assertTrue(seen[0][1] == seen[1][1])

    def test_requests_packed_into_one_row_are_told_by_the_caller(self):
        """And digests alone of the same say that it is the same, and judge nothing."""
        owner = torch.tensor([[4] * 9 + [-1] + [7] * 5])
        position = torch.cat([torch.arange(9), torch.zeros(1), torch.arange(5)]).long()[None]
        ids = torch.cat([tokens(9, 1, 300), tokens(1, 3, 300), tokens(5, 2, 300)], 1)
        own = (owner[0][:, None] == owner[0]) & torch.ones(15, 15, dtype=torch.bool).tril()

        @torch.no_grad()
        def run(model):
            return model(ids, position_ids=position, attention_mask=own[None, None],
                         use_cache=False).logits

        def asked(arguments):
            return owner, arguments["position_ids"]

        path = self.captured(load(QWEN3), run, request_positions=asked)
        self.assert_clean(path, QWEN3)
        with lockstep.Trace(path) as trace:
            self.assertEqual([(r.id, len(r.prompt)) for r in trace.requests], [(4, 9), (7, 5)])
        full = path.rename(self.folder / "full.h5")
        path = self.captured(load(QWEN3), run, request_positions=asked, device_digests=True)
        self.assertLess(path.stat().st_size, full.stat().st_size / 6)
        status, screen = self.called("diff", full, path)
        self.assertEqual(status, 0, screen)
        self.assertIn("identical", screen)
        verdict = lockstep.judge(path, QWEN3)
        self.assertEqual((verdict.verdict, verdict.judged), ("inconclusive", 0))

    def test_positions_that_a_cache_cannot_have_are_refused(self):
        for owner, position, part in (
                ([0, 0, 0], [0, 2, 1], "request 0 has positions 0, 2, 1 in row 0"),
                ([0, 0], [0, 1], "integers [1, 3], were wanted"),
                ([0.0, 0.0, 0.0], [0, 1, 2], "integers [1, 3], were wanted")):
            def run(owner=owner, position=position):
                with lockstep.capture(load(QWEN3), self.folder / "x.h5", request_positions=lambda _:
                                      (torch.tensor([owner]), torch.tensor([position]))):
                    load(QWEN3)(tokens(3, 1, 300))
            self.refused(part, run)


class Wrong(Captured):
    def test_a_bug_is_named(self):
        """The cache of layer 2 is overwritten in place between two steps: nothing computes it."""
        model = load(QWEN3)

        @torch.no_grad()
        def run(model):
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

    def test_what_a_hook_makes_of_a_result_is_what_the_next_op_reads(self):
        """Hooks of the user's, from before the block and from within, are part of the module."""
        model = load(QWEN3)
        layers = model.model.layers

        def twice(_module, _args, made):
            return 2 * made

        @torch.no_grad()
        def run(model):
            with layers[3].mlp.down_proj.register_forward_hook(twice):
                return model(tokens(6, 1, 4096)).logits

        with layers[1].self_attn.o_proj.register_forward_hook(twice):
            verdict = lockstep.judge(self.captured(model, run), QWEN3)
        self.assertEqual({finding.place for finding in verdict.findings},
                         {"layer 1 attn.o", "layer 3 mlp.down"}, verdict)

    def test_a_square_weight_that_was_read_transposed_is_said_to_be(self):
        """x W^T has the shape of x W where W is square: no engine notices, and the finding says."""
        model = load(SLIDING)
        for layer, name, place in ((1, "q_proj", "layer 1 attn.q"),
                                   (0, "o_proj", "layer 0 attn.o")):
            weight = getattr(model.model.layers[layer].self_attn, name).weight
            self.assertEqual(weight.shape[0], weight.shape[1])
            kept = weight.data
            weight.data = kept.t().contiguous()
            try:
                path = self.captured(model, generated(tokens(24, 1, 320), 2))
            finally:
                weight.data = kept
            first = lockstep.judge(path, SLIDING).first
            self.assertEqual((first.place, first.looks_like),
                             (place, ("its weight read transposed",)))


class PutBack(Captured):
    def parts(self, model):
        modeling = modeling_of(model.model)
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        return (modeling.apply_rotary_pos_emb, modeling.ALL_ATTENTION_FUNCTIONS, hooks,
                [set(vars(module)) for module in model.modules()])

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

    def test_a_selection_is_read_as_the_command_line_reads_it(self):
        path = self.captured(load(QWEN3), generated(tokens(4, 1, 4096), 2),
                             points="mlp.n*, mlp.up", layers="0,3-4")
        with lockstep.Trace(path) as trace:
            self.assertEqual({(t.point, t.layer) for t in trace.tensors},
                             {(p, i) for p in ("mlp.up", "mlp.norm") for i in (0, 3, 4)})

    def test_what_a_model_has_not_is_not_selected(self):
        def ask(**selection):
            lockstep.capture(load(QWEN3), self.folder / "x.h5", **selection).__enter__()

        for layers in ([6], [2, 7], "0,6", "2-9", -1):
            self.refused("but the model's layers are 0..5", ask, layers=layers)
        for layers in ("all", "3-1", "1,,2", [0.5], [None]):
            self.refused("numbers and ranges such as 0,3-5 were wanted", ask, layers=layers)
        self.refused("mlp.up is the nearest", ask, points="attn.q,mlp.upp")
        self.refused("'att.*' is no point", ask, points=["att.*"])
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_what_cannot_be_captured_is_a_sentence(self):
        model, ids = load(QWEN3), tokens(4, 1, 4096)
        path = self.folder / "z.h5"
        with lockstep.capture(model, path):
            self.refused("beams", generated(ids, num_beams=2), model)
            self.refused("look tokens up", generated(ids, do_sample=True,
                                                     prompt_lookup_num_tokens=3), model)
            self.refused("input_ids", model, inputs_embeds=model.model.embed_tokens(ids))
            generated(ids, 1)(model)
        self.refused("exists already", lockstep.capture(model, path).__enter__)
        path = self.folder / "y.h5"
        layer = model.model.layers[2].mlp.up_proj
        layer.compile(backend="eager")
        try:
            self.refused("is compiled", lockstep.capture(model, path).__enter__)
        finally:
            del layer._compiled_call_impl
        self.refused("a Linear is no Hugging Face model, which has a config: a Qwen2, Qwen3 or",
                     lockstep.capture(torch.nn.Linear(2, 2), path).__enter__)
        self.refused("is no point", lambda: lockstep.capture(model, path, points=("mlp.upp",))
                     .__enter__())


class Example(InFolder):
    def test_from_a_script_to_a_verdict(self):
        script = support.PACKAGE / "examples/judge_hugging_face.py"
        code = [line for line in script.read_text().split('"""')[2].splitlines() if line.strip()]
        self.assertLessEqual(len(code), 10)
        said = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(said), \
                unittest.mock.patch.object(sys, "argv", [str(script), QWEN3]):
            runpy.run_path(str(script), run_name="__main__")
        self.assertRegex(said.getvalue(), r"^clean: No bug: (\d+) of \1 nodes")


if __name__ == "__main__":
    support.main()
