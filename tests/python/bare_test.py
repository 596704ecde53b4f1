"""The least trace, written with h5py alone, is judged, inspected and compared.

python bare_test.py LOCKSTEP. The program is the one of traces/README.md.
"""
import copy
import functools
import subprocess
import textwrap

import h5py
import numpy as np
import torch
import transformers

import support
from support import QWEN3, ROOT, TINY, InFolder

import lockstep
from lockstep.verdict import find_command

POINTS = {"attn.norm": "input_layernorm", "attn.o": "self_attn.o_proj",
          "mlp.norm": "post_attention_layernorm", "mlp.residual": ""}  # and their modules
UNSEALED = "unsealed: made by another program; hashes were computed now"


def program():
    """The code of the page, which writes x.h5 of the model in DIR."""
    page = (ROOT / "traces/README.md").read_text()
    begin = page.index("    import h5py, torch, transformers\n")
    return textwrap.dedent(page[begin:page.index("\n\nA file with", begin)])


class Bare(InFolder):
    def setUp(self):
        super().setUp()
        torch.set_num_threads(1)
        self.path = self.folder / "x.h5"

    def write(self, before="", model=QWEN3):
        """The trace of the page's program, with a line of code before the model runs. Its tokens
        are of the larger vocabulary: a small model is fed what they are modulo its own."""
        code = program().replace('"x.h5"', repr(str(self.path)))
        self.assertLessEqual(len([line for line in code.splitlines() if line.strip()]), 18)
        code = code.replace("tokens = [", before + "\ntokens = [", 1)
        if model != QWEN3:
            self.assertIn("\nwith torch", code)
            code = code.replace("\nwith torch", "\ntokens = [t % model.config.vocab_size "
                                                "for t in tokens]\nwith torch", 1)
        exec(compile(code, "traces/README.md", "exec"), {"DIR": model})

    def run_it(self, *words):
        made = subprocess.run([find_command(), *map(str, words)], capture_output=True,
                              text=True, check=False)
        return made.returncode, made.stdout + made.stderr

    def test_the_page_s_program_is_judged(self):
        self.write()
        verdict = lockstep.judge(self.path, QWEN3)
        self.assertTrue(verdict, verdict)
        self.assertIn(UNSEALED, verdict.notes)
        self.assertEqual(verdict.result["scope"]["contracts"]["mlp.norm"], "hf")
        before = self.path.read_bytes()
        status, screen = self.run_it("judge", self.path, "--model", QWEN3)
        self.assertEqual(status, 0, screen)
        self.assertIn(UNSEALED, screen)
        self.assertNotIn("warning", screen)
        self.assertEqual(self.path.read_bytes(), before)

    def test_its_points_may_be_said_to_round(self):
        self.write()
        for point, rounding in (("mlp.norm", "hf"), ("attn.out", "hf"), ("attn.o", "fused")):
            status, screen = self.run_it("judge", self.path, "--model", QWEN3,
                                         "--rounding", f"{point}={rounding}")
            self.assertEqual(status, 0, screen)
        status, screen = self.run_it("judge", self.path, "--model", QWEN3,
                                     "--rounding", "attn.lse=hf")
        self.assertEqual(status, 2, screen)
        self.assertIn("--rounding attn.lse=hf: no pass shows such a tensor", screen)

    def said(self, dtype):
        """Lets the file say another dtype, or none."""
        with h5py.File(self.path, "a") as file:
            del file.attrs["dtype"]
            if dtype:
                file.attrs["dtype"] = dtype

    def test_fp32_that_holds_bf16_alone_is_a_run_in_bf16(self):
        self.write()
        self.said("")
        verdict = lockstep.judge(self.path, QWEN3)
        self.assertTrue(verdict, verdict)
        self.assertEqual(verdict.result["provenance"]["compute_dtype"], "bf16")
        self.assertIn("nothing says the dtype of the run: all numbers of "
                      "/tensors/pass000000/layer000000/attn.o are bf16, stored wider, so it is "
                      "taken for bf16 (attribute dtype of the file)", verdict.notes)

    def test_a_wrong_dtype_is_doubted(self):
        def doubts(said):
            self.said(said)
            verdict = lockstep.judge(self.path, TINY)
            self.assertFalse(verdict)
            return [note for note in verdict.notes if "(its dtype)" in note]
        self.write(model=TINY)
        for said in ("fp32", "fp16"):
            self.assertEqual(doubts(said), [
                f"the run is judged as one in {said}, and the numbers of layer 0 attn.o in pass 0, "
                "and of 2 more tensors, are bf16: if it was in bf16, the trace is to say so (its "
                "dtype)"])
        self.write("model = model.half()", TINY)
        self.assertIn("are fp16: if it was in fp16", doubts("bf16")[0])
        # A bug in a run whose dtype is right says nothing of it.
        self.write("model.model.layers[2].post_attention_layernorm.variance_epsilon = 1e3", TINY)
        self.assertEqual(doubts("bf16"), [])

    def test_a_run_in_fp32_needs_not_say_so(self):
        self.write("model = model.float()")
        self.said("")
        verdict = lockstep.judge(self.path, QWEN3)
        self.assertEqual(verdict.result["provenance"]["compute_dtype"], "fp32")
        self.assertFalse([note for note in verdict.notes if "dtype" in note], verdict.notes)

    def test_hidden_states_are_judged(self):
        """As transformers hands them out: the last one is after the last norm."""
        model = support.load(QWEN3)
        tokens = support.tokens(40, 1, model.config.vocab_size)
        with torch.no_grad():
            made = model(tokens, output_hidden_states=True)
        states, layers = made.hidden_states, model.config.num_hidden_layers
        self.assertEqual(len(states), layers + 1)

        def judged(without=None):
            with h5py.File(self.path, "w") as file:
                file.attrs["dtype"], file.attrs["schema"] = "bf16", "hf"
                file["passes/token"], file["passes/position"] = tokens[0], range(tokens.shape[1])
                places = {"model/embed": states[0], "model/final.norm": states[layers],
                          "model/logits": made.logits}
                places |= {f"layer{i:06}/mlp.residual": states[i + 1] for i in range(layers - 1)}
                for place, numbers in places.items():
                    if place != without:
                        file["tensors/pass000000/" + place] = numbers[0].float().numpy()
                file["tensors/pass000000/model/token"] = made.logits[0].argmax(-1)
            return lockstep.judge(self.path, QWEN3)

        whole = judged()
        self.assertTrue(whole, whole)
        with h5py.File(self.path, "a") as file:  # nor need it say its dtype
            del file.attrs["dtype"]
            for i in range(layers - 1):  # beside a stream in fp32, which some engines keep
                file[f"tensors/pass000000/layer{i:06}/mlp.residual"][0, :2] += 1e-6
        found = lockstep.judge(self.path, QWEN3)
        self.assertEqual(found.result["provenance"]["compute_dtype"], "bf16")
        missed = judged("layer000002/mlp.residual")
        self.assertEqual((missed.first.layer, missed.first.point), (2, "mlp.residual"), missed)
        self.assertFalse(judged("model/final.norm"))

    def test_rotary_tables_may_be_rounded(self):
        tables = """
def keep_tables(m, x, out):
    cos, sin = (table[0, :, :table.shape[-1] // 2].float().numpy() for table in out)
    seen.update({"model/rope.cos": cos, "model/rope.sin": sin})
model.model.rotary_emb.register_forward_hook(keep_tables)
"""
        self.write(tables)
        said = "rope.cos and rope.sin are rounded to bf16, as Hugging Face's and vLLM's are"
        verdict = lockstep.judge(self.path, QWEN3)
        self.assertTrue(verdict, verdict)
        self.assertEqual(len([note for note in verdict.notes if said in note]), 1, verdict.notes)
        with h5py.File(self.path, "a") as file:
            del file.attrs["schema"]
        self.assertTrue(lockstep.judge(self.path, QWEN3))
        with h5py.File(self.path, "a") as file:  # whose ropes read what they are given
            file.attrs["schema"] = "fused"
        self.assertEqual(lockstep.judge(self.path, QWEN3).first.point, "rope.cos")
        self.write(tables + "model.model.rotary_emb.inv_freq *= 1.01")
        self.assertEqual(lockstep.judge(self.path, QWEN3).first.point, "rope.cos")

    def test_a_stream_in_fp32_is_one_where_a_sum_of_it_is_hidden(self):
        wide = """
model.model.embed_tokens.register_forward_hook(lambda m, x, out: out.float())
for norm in [m for n, m in model.named_modules() if n.endswith("layernorm") or n == "model.norm"]:
    norm.forward = lambda x, of=norm.forward: of(x).bfloat16()
rotary = model.model.rotary_emb
rotary.forward = lambda x, *at, of=rotary.forward, **by: of(x.bfloat16(), *at, **by)
"""
        def unschooled(more=""):
            self.write(wide + more)
            with h5py.File(self.path, "a") as file:
                del file.attrs["schema"]
            return lockstep.judge(self.path, QWEN3)
        verdict = unschooled()
        self.assertTrue(verdict, verdict)
        self.assertIn("attn.residual", str(verdict.notes))
        said = "mlp.residual holds nothing but numbers of bf16 in layers 2, and of fp32 in others"
        self.assertEqual([note for note in verdict.notes if said in note], [])
        with h5py.File(self.path, "a") as file:
            rounded = file["tensors/pass000000/layer000002/mlp.residual"]
            rounded[:] = torch.tensor(rounded[:]).bfloat16().float().numpy()
        notes = lockstep.judge(self.path, QWEN3).notes
        self.assertEqual(len([note for note in notes if said in note]), 1, notes)
        narrow = unschooled("""
model.model.layers[2].post_attention_layernorm.register_forward_pre_hook(
    lambda m, x: (x[0].bfloat16().float() * 1.01,))
""")
        self.assertEqual((narrow.first.layer, narrow.first.point), (2, "mlp.norm"), narrow)

    def test_a_router_may_be_in_fp32(self):
        def routed(scale):
            self.write(f"""
def forward(m, x):
    logits = torch.nn.functional.linear(x.float(), m.weight.float())
    weights, chosen = torch.topk(logits.softmax(-1), m.top_k)
    weights = weights / weights.sum(-1, keepdim=True) * {scale}
    return logits, weights, chosen
for i, layer in enumerate(model.model.layers):
    if hasattr(layer.mlp, "gate"):
        layer.mlp.gate.forward = lambda x, m=layer.mlp.gate: forward(m, x)
        layer.mlp.gate.register_forward_hook(lambda m, x, out, at=f"layer{{i:06}}/mlp.":
            seen.update({{at + "router": out[0].numpy(), at + "weights": out[1].numpy(),
                          at + "experts": out[2].int().numpy()}}))
""", ROOT / "tests/data/tiny/qwen3-moe")
            return lockstep.judge(self.path, ROOT / "tests/data/tiny/qwen3-moe")
        verdict = routed(1)
        self.assertTrue(verdict, verdict)
        # Too little for 16 bits to show, and many units of fp32.
        self.assertEqual(routed(1.0001).first.point, "mlp.weights")

    def test_a_contract_of_all_layers_excuses_none(self):
        kept = support.load(QWEN3)
        tokens = support.tokens(40, 1, kept.config.vocab_size)
        dim, last = kept.config.head_dim, kept.config.num_hidden_layers

        def judged(gain):
            """With the scores of layer 4 times so much; what q and k became is hidden."""
            model, seen = copy.deepcopy(kept), {}
            def keep(place, rows):
                seen[place] = rows[0].float().reshape(rows.shape[1], -1, dim).numpy()
            for i, layer in enumerate(model.model.layers):
                for name in "qkv":
                    getattr(layer.self_attn, name + "_proj").register_forward_hook(
                        lambda _m, _x, out, at=f"layer{i:06}/attn.{name}": keep(at, out))
                layer.self_attn.o_proj.register_forward_pre_hook(
                    lambda _m, x, at=f"layer{i:06}/attn.out": keep(at, x[0]))
            model.model.layers[4].self_attn.scaling = gain * dim ** -0.5
            with torch.no_grad():
                made = model(tokens, output_hidden_states=True)
            seen |= {f"layer{i:06}/mlp.residual": made.hidden_states[i + 1][0].float().numpy()
                     for i in range(last - 1)}
            for place, rows in (("embed", made.hidden_states[0]), ("logits", made.logits),
                                ("final.norm", made.hidden_states[last])):
                seen["model/" + place] = rows[0].float().numpy()
            seen["model/token"] = made.logits[0].argmax(-1)
            with h5py.File(self.path, "w") as file:
                file.attrs["dtype"] = "bf16"
                file["passes/token"], file["passes/position"] = tokens[0], range(tokens.shape[1])
                for place, numbers in seen.items():
                    file["tensors/pass000000/" + place] = numbers
            return lockstep.judge(self.path, QWEN3)

        self.assertTrue(judged(1))
        # How torch attends depends on the processor: 1.02 is within rounding where it has AVX-512.
        found = judged(1.03)
        self.assertEqual(found.result["verdict"], "inconclusive", found)
        self.assertIn("attn.out rounds in two ways", str(found))
        self.assertEqual(len([note for note in found.notes if "as eager in layers 4:" in note]), 1)
        found = judged(1.06)
        self.assertEqual((found.first.layer, found.first.point), (4, "attn.out"), found)

    def test_other_weights_are_thought_of(self):
        hooks = """
for i, layer in enumerate(model.model.layers):
    for point in ("gate", "up", "down"):
        getattr(layer.mlp, point + "_proj").register_forward_hook(
            lambda m, x, out, place=f"layer{i:06}/mlp.{point}":
            seen.update({place: out[0].float().numpy()}))
"""
        said = "every product with a weight of a layer that was judged is wrong"
        def notes(change):
            self.write(hooks + f"for one in {change}: one.weight.data *= "
                                           "1 + 0.03 * torch.randn(one.weight.shape)", TINY)
            verdict = lockstep.judge(self.path, TINY)
            self.assertFalse(verdict)
            return [note for note in verdict.notes if said in note]
        products = "[m for n, m in model.model.layers.named_modules() if '_proj' in n]"
        self.assertEqual(len(notes(products)), 1)
        self.assertEqual(notes(products + "[:7]"), [], "of one layer alone")
        self.assertEqual(notes("[layer.mlp.up_proj for layer in model.model.layers]"), [])

    def test_a_bug_is_named_and_compared(self):
        self.write()
        right = self.folder / "right.h5"
        self.path.rename(right)
        self.write("model.model.layers[2].post_attention_layernorm.variance_epsilon = 1e3")
        verdict = lockstep.judge(self.path, QWEN3)
        self.assertEqual((verdict.first.layer, verdict.first.point), (2, "mlp.norm"), verdict)
        status, screen = self.run_it("diff", right, self.path)
        self.assertEqual(status, 1, screen)
        self.assertIn("layer 2 mlp.norm", screen)
        self.assertIn(UNSEALED, screen)

    def judged_of_one_pass(self, tokens, seen):
        """Of a prompt, by the tensors seen at places such as `layer000002/mlp.norm`."""
        seen["model/token"] = seen["model/logits"].argmax(-1)
        with h5py.File(self.path, "w") as file:
            file.attrs["dtype"] = "bf16"
            file["passes/token"] = tokens[0].numpy()
            file["passes/position"] = range(tokens.shape[1])
            for place, numbers in seen.items():
                file[f"tensors/pass000000/{place}"] = numbers
        return lockstep.judge(self.path, QWEN3)

    def judged_by_sums(self, eps, fused, layers=(2,)):
        """Of a trace that has the sums that norms read and not what these are of. fused: the norm
        reads its sum in fp32, before it is stored."""
        model, seen = copy.deepcopy(support.load(QWEN3)), {}  # others use that one
        tokens = support.tokens(40, 1, model.config.vocab_size)

        def see(place, numbers):
            seen[place] = numbers[0].float().numpy()

        def norm(i, module, x):
            see(f"layer{i:06}/attn.residual", x)
            values = sum(terms[-2:]) if fused else x.float()
            values *= torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
            made = (values * module.weight.float()).to(x.dtype)
            see(f"layer{i:06}/mlp.norm", made)
            return made

        terms = []
        for i, layer in enumerate(model.model.layers):
            module = layer.post_attention_layernorm
            module.forward = functools.partial(norm, i, module)
            if i in layers:
                module.variance_epsilon = eps
            layer.register_forward_pre_hook(lambda _m, x: terms.append(x[0].float()))
            layer.self_attn.register_forward_hook(
                lambda _m, _x, out: terms.append(out[0].float()))
        with torch.no_grad():
            see("model/logits", model(tokens).logits)
        return self.judged_of_one_pass(tokens, seen)

    def test_an_eps_is_seen_though_nothing_says_what_its_norm_read(self):
        for fused in (False, True):
            self.assertTrue(self.judged_by_sums(1e-6, fused))
        # A layer that reads what was stored is outvoted by the others, at any eps that shows. Of
        # one that reads the sum, or of all, there is the scale of the rows alone.
        for eps, fused in ((1e-4, False), (1e-2, True)):
            verdict = self.judged_by_sums(eps, fused)
            self.assertFalse(verdict, (eps, fused))
            self.assertEqual((verdict.first.layer, verdict.first.point), (2, "mlp.norm"), verdict)
        self.assertFalse(self.judged_by_sums(1e-2, False, range(6)))

    def judged_by_norms(self, factor):
        """Of a trace that has norms and what attention reads of them alone, the first mlp.norm of
        which has this factor too much."""
        model, seen = copy.deepcopy(support.load(QWEN3)), {}
        tokens, head = support.tokens(16, 1, model.config.vocab_size), model.config.head_dim

        def see(place, _module, _inputs, made):
            rows = made[0].float()
            is_heads = place[-6:] in ("attn.q", "attn.k", "attn.v")
            seen[place] = (rows.unflatten(-1, (-1, head)) if is_heads else rows).numpy()

        def norm(module, x):
            values = x.float()
            values *= torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
            return (values.to(x.dtype).float() * (module.weight.float() * factor)).to(x.dtype)

        for i, layer in enumerate(model.model.layers):
            shown = {"attn.norm": layer.input_layernorm, "mlp.norm": layer.post_attention_layernorm}
            shown |= {f"attn.{c}": getattr(layer.self_attn, f"{c}_proj") for c in "qkv"}
            for point, module in shown.items():
                module.register_forward_hook(functools.partial(see, f"layer{i:06}/{point}"))
        wrong = model.model.layers[0].post_attention_layernorm
        wrong.forward = functools.partial(norm, wrong)
        with torch.no_grad():
            see("model/logits", None, None, model(tokens).logits)
        return self.judged_of_one_pass(tokens, seen)

    def test_a_factor_is_seen_though_what_its_norm_read_is_hidden(self):
        self.assertTrue(self.judged_by_norms(1))
        verdict = self.judged_by_norms(0.995)
        self.assertFalse(verdict)
        self.assertEqual((verdict.first.layer, verdict.first.point), (0, "mlp.norm"), verdict)

    def test_it_is_inspected(self):
        self.write()
        for more in ((), ("--points", "mlp.norm", "--layers", "2"), ("--passes",)):
            status, screen = self.run_it("inspect", self.path, *more)
            self.assertEqual(status, 0, screen)
        # How many layers the model has is not known.
        status, sentence = self.run_it("inspect", self.path, "--layers", "77")
        self.assertEqual(status, 2, sentence)
        self.assertIn("x.h5 is selected by --layers 77: `lockstep inspect ", sentence)
        screen = self.run_it("inspect", self.path)[1]
        self.assertIn(UNSEALED, screen)
        self.assertRegex(screen, r"\n[1-9] requests?   [1-9]")

    def test_the_axes_that_the_page_sends_to_are_seen(self):
        status, screen = self.run_it("points")
        self.assertEqual(status, 0, screen)
        self.assertRegex(screen, r"\nattn\.q  .* token, head, dim")
        self.assertRegex(screen, r"\nattn\.kv .* position, k\|v, kv head, dim")

    def test_other_types_of_the_same_numbers_are_the_same_trace(self):
        """bf16 as its bits, integers of other widths, a batch of one."""
        self.write()
        other = self.folder / "other.h5"
        with h5py.File(self.path) as old, h5py.File(other, "w") as new:
            new.attrs.update({"dtype": np.bytes_("bf16"), "schema": "hf"})
            new["passes/token"] = old["passes/token"][()].astype(np.uint16)
            new["passes/position"] = old["passes/position"][()].astype(np.int8)

            def copy(name, data):
                if isinstance(data, h5py.Dataset) and data.dtype.kind != "f":
                    new["tensors/" + name.replace("pass000000", "pass0")] = data[()]
                elif isinstance(data, h5py.Dataset):
                    bits = (data[()].view(np.uint32) >> 16).astype(np.uint16)
                    new["tensors/" + name.replace("pass000000", "pass0")] = bits[None]
            old["tensors"].visititems(copy)
        status, screen = self.run_it("diff", self.path, other)
        self.assertEqual(status, 0, screen)
        self.assertTrue(lockstep.judge(other, QWEN3))

    def test_chunks_and_an_unknown_engine_are_sentences(self):
        self.write()
        with h5py.File(self.path, "a") as file:
            file.attrs["schema"] = "vlm"
        status, sentence = self.run_it("judge", self.path, "--model", QWEN3)
        self.assertEqual(status, 2)
        self.assertIn("'vlm' is no set of rounding contracts; did you mean \"vllm\"?", sentence)
        with h5py.File(self.path, "a") as file:
            del file["passes/token"]
            file.create_dataset("passes/token", data=list(range(6)), compression="gzip")
        status, sentence = self.run_it("inspect", self.path)
        self.assertEqual(status, 2)
        self.assertIn("in h5py without chunks=, compression= and maxshape=", sentence)


class Chunked(InFolder):
    """A prompt in three chunks, of which an engine computes the last norm and the logits of the
    last alone, and a decode pass."""

    CHUNKS = [[185, 29, 23, 77], [208, 301, 12, 99], [100, 5]]

    @torch.no_grad()
    def write(self, name, before_second=lambda _model: None):
        model = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.bfloat16)
        seen, passes = {}, []

        def see(place):
            return lambda _module, _x, out: seen.update({place: out.float().numpy()})

        for i, layer in enumerate(model.model.layers):
            for point, module in POINTS.items():
                layer.get_submodule(module).register_forward_hook(see(f"layer{i:06}/{point}"))
        model.model.norm.register_forward_hook(see("model/final.norm"))
        model.lm_head.register_forward_hook(see("model/logits"))
        cache, tokens = transformers.DynamicCache(config=model.config), [*self.CHUNKS, None]
        path = self.folder / name
        with h5py.File(path, "w") as file:
            file.attrs.update({"dtype": "bf16", "schema": "hf"})
            for number, chunk in enumerate(tokens):
                if number == 1:
                    before_second(model)
                chunk = chunk or [int(seen["model/token"][0])]
                model(torch.tensor([chunk]), past_key_values=cache)
                passes += [(number, token) for token in chunk]
                logits = seen.pop("model/logits")[0, -1:]
                seen["model/logits"], seen["model/token"] = logits, logits.argmax(-1)
                for place, numbers in seen.items():
                    if number >= 2 or not place.startswith("model/"):
                        file[f"tensors/pass{number:06}/{place}"] = numbers
            file["passes/pass"], file["passes/token"] = zip(*passes)
            file["passes/position"] = range(len(passes))
        return path

    def test_passes_without_logits_need_no_last_norm(self):
        verdict = lockstep.judge(self.write("right.h5"), TINY)
        self.assertTrue(verdict, verdict)
        # Of 3 layers 4 points in 4 passes, and of two passes the norm, the logits and the token.
        places = 4 * 3 * 4 + 2 * 3
        self.assertEqual((verdict.judged, verdict.expected), (places, places))

        def norm(model):
            model.model.layers[2].post_attention_layernorm.variance_epsilon = 1e3

        verdict = lockstep.judge(self.write("wrong.h5", norm), TINY)
        self.assertEqual((verdict.first.layer, verdict.first.point), (2, "mlp.norm"), verdict)
        self.assertEqual(verdict.result["first"]["pass"], 1)

    def test_a_pass_with_logits_needs_it(self):
        path = self.write("x.h5")
        with h5py.File(path, "a") as file:
            del file["tensors/pass000002/model/final.norm"]
        verdict = lockstep.judge(path, TINY)
        self.assertEqual(verdict.first.point, "final.norm", verdict)
        with h5py.File(path, "a") as file:
            del file["tensors/pass000003/model/final.norm"]
        # No pass has it now, and the logits are judged with it.
        self.assertTrue(lockstep.judge(path, TINY))


if __name__ == "__main__":
    support.main()
