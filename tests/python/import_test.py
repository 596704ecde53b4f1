"""Dumps of other tools become traces: each tensor at its point, each row its request's.

python import_test.py LOCKSTEP. Files are the tool's own where it can be run here.
"""
import contextlib
import importlib.util
import io
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import unittest

import numpy as np
import torch

import dumps_made
import support
from support import TINY, InFolder, load, padded, tokens

import lockstep
from lockstep import command, mapping

torch.set_num_threads(1)

FUSED = ("embed", "attn.norm", "attn.q", "attn.k", "attn.v", "attn.q_norm", "attn.k_norm",
         "attn.q_rope", "attn.k_rope", "attn.out", "attn.o", "attn.residual", "mlp.norm",
         "mlp.gate", "mlp.up", "mlp.act", "mlp.down", "mlp.residual", "final.norm", "logits",
         "token")
HOOKED = tuple(p for p in FUSED if not p.endswith("_rope"))
# By writer of a dump: the map, and the points that it has.
MADE = {
    "sglang_dumper": ("sglang", FUSED),
    "pass_files": ("sglang", FUSED),
    "vllm_intermediates": ("nano-vllm", FUSED),  # the same names
    "msprobe": ("vllm", FUSED),
    "tensorrt_llm_hooks": ("tensorrt-llm", HOOKED),
    "tensorrt_llm_rotary": ("tensorrt-llm", FUSED),
    "tensorrt_llm_npy": ("tensorrt-llm", ("attn.o", "mlp.down", "logits", "token")),
    "npz_a_pass": ("huggingface", ("attn.norm", "attn.q", "attn.k", "attn.v", "attn.o",
                                       "mlp.down")),
    "npy_a_tensor": ("points", ("embed", "attn.norm", "mlp.norm", "mlp.gate")),
}


def passes_of_llama_cpp():
    """The passes of the dump that llama.cpp made, by name."""
    passes = []
    for file in sorted((support.DATA / "llama.cpp").iterdir()):
        with np.load(file) as arrays:
            passes.append({name: arrays[name] for name in arrays.files})
    return passes


def attend(passes, kernel):
    """Puts the results of another attention into passes, of each row and head over its keys."""
    for layer in range(3):
        written = {}  # by request: K and V of each position
        for tensors in passes:
            out = np.empty_like(tensors[f"Qcur-{layer}:ROPE"])
            for row, request in enumerate(tensors["requests"]):
                keys = written.setdefault(int(request), [])
                keys.append((tensors[f"Kcur-{layer}:ROPE"][row],
                             tensors[f"Vcur-{layer}:RESHAPE"][row]))
                k, v = (np.stack(side) for side in zip(*keys))
                group = out.shape[1] // k.shape[1]
                for head in range(out.shape[1]):
                    q = tensors[f"Qcur-{layer}:ROPE"][row, head]
                    out[row, head] = kernel(q, k[:, head // group], v[:, head // group])
            tensors[f"kqv_out-{layer}:CONT"] = out.reshape(len(out), -1)


def of_many_rows(q, k, v):
    """Of K and V in fp16."""
    k, v = (x.astype(np.float16).astype(np.float64) for x in (k, v))
    scores = k @ q.astype(np.float64) / np.sqrt(len(q))
    p = np.exp(scores - scores.max())
    return (p @ v / p.sum()).astype(np.float32)


def of_few_rows(q, k, v):
    """The same, of a query in fp16, key by key; the sum is kept in fp16."""
    q = q.astype(np.float16).astype(np.float32)
    k, v = k.astype(np.float16).astype(np.float32), v.astype(np.float16).astype(np.float32)
    total, largest = np.float32(0), np.float32(-np.inf)
    summed = np.zeros(len(q), np.float16)
    for key, value in zip(k, v):
        score, weight = key @ q / np.sqrt(np.float32(len(q))), np.float32(1)
        if score > largest:
            summed = (summed * np.exp(largest - score)).astype(np.float16)
            total *= np.exp(largest - score)
            largest = score
        else:
            weight = np.exp(score - largest)
        summed = (summed.astype(np.float32) + value * weight).astype(np.float16)
        total += weight
    return summed.astype(np.float32) / total


class Dumped(InFolder):
    """Dumps that are made of what was captured from Hugging Face."""

    @classmethod
    def setUpClass(cls):
        """Two requests, a prefill and a step, captured from Hugging Face."""
        cls.base = support.tempfile.TemporaryDirectory()
        path = f"{cls.base.name}/right.h5"
        ids, mask = padded([4, 6], 320)
        cls.model = load(TINY)
        with lockstep.capture(cls.model, path):
            cls.model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=2)
        cls.right = lockstep.Trace(path)

    @classmethod
    def tearDownClass(cls):
        cls.right.close()
        cls.base.cleanup()

    def imported(self, names, source=None, model=TINY, **options):
        out = self.folder / "out.h5"
        out.unlink(missing_ok=True)
        source = self.folder / "dump" if source is None else source
        report = lockstep.import_dump(source, out, names=names, model=model, **options)
        return report, out

    def made(self, writer, *arguments):
        folder = self.folder / "dump"
        folder.mkdir()
        getattr(dumps_made, writer)(self.right, folder, *arguments)

    def assert_same(self, trace, points, lost_logits=(), caches=0):
        """The trace's tensors are those that were dumped, bit for bit, at their rows."""
        self.assertEqual([p.rows for p in trace.passes], [p.rows for p in self.right.passes])
        tensors = [info for info in trace.tensors if info.point != "attn.kv"]
        self.assertEqual(len(trace.tensors) - len(tensors), caches)
        self.assertEqual({info.point for info in tensors}, set(points))
        for info in tensors:
            want = self.right.tensor(info.point, info.layer, number=info.number)
            np.testing.assert_array_equal(trace.tensor(info.point, info.layer, number=info.number),
                                          want, err_msg=str(info))
        for point in points:
            if point in ("logits", "token") and lost_logits:
                continue
            numbers = {info.number for info in tensors if info.point == point}
            self.assertEqual(numbers, {0, 1}, point)


class Imports(Dumped):
    def test_each_layout_has_its_tensors_at_their_points(self):
        for writer, (names, points) in MADE.items():
            with self.subTest(writer=writer), contextlib.ExitStack() as stack:
                folder = support.tempfile.TemporaryDirectory()
                self.folder = support.pathlib.Path(stack.enter_context(folder))
                self.made(writer)
                report, out = self.imported(names)
                with lockstep.Trace(out) as trace:
                    self.assertEqual(report.passes, 2)
                    self.assertEqual(trace.dtype, "bf16")
                    self.assert_same(trace, points, writer == "pass_files")

    def test_names_that_nobody_knows_are_listed_with_the_nearest(self):
        self.made("npz_a_pass")
        report, _ = self.imported("huggingface")
        self.assertEqual(report.unknown, {"model.layers.N.self_attn.q_prj":
                                          "model.layers.N.self_attn.q_proj:out"})
        self.assertIn("q_prj  (nearest: model.layers.N.self_attn.q_proj:out)", str(report))

    def test_what_does_not_fit_is_said_and_left_out(self):
        arrays = {"tokens": np.arange(3), "embed": np.ones((3, 64)), "layers.0.mlp.norm":
                  np.ones((2, 64), "f4"), "layers.0.attn.norm": np.full((3, 64), 0.1, "f4"),
                  "layers.9.mlp.up": np.ones((3, 160), "f4"), "layers.1.attn.o":
                  np.ones((1, 3, 64), "f4"), "names": np.array(["a"])}
        np.savez(self.folder / "x.npz", **arrays)
        report, out = self.imported("points", self.folder / "x.npz")
        with lockstep.Trace(out) as trace:
            self.assertEqual([(t.point, t.layer, t.dtype) for t in trace.tensors],
                             [("attn.norm", 0, "fp32"), ("attn.o", 1, "bf16")])
        said = str(report)
        for part in ("an array of float64", "mlp.norm of layer 0 is [2, 64], which is not 3 rows",
                     "are fp32 where the run is bf16, the first: attn.norm of layer 0"):
            self.assertTrue(any(part in what for what in report.skipped + [said]), (part, report))
        self.assertEqual(list(report.unknown), ["names"])

    def of_llama_cpp(self, source):
        """What the judge says of a dump of llama.cpp. Its last layer has, after the attention, the
        rows with logits alone, and its passes the rows of two requests."""
        _, out = self.imported("llama.cpp", source, model=TINY, schema="llama.cpp")
        return lockstep.judge(out, TINY, "--rounding", "attn.out=operands_fp16")

    def test_what_llama_cpp_wrote_is_right_and_a_bug_in_it_named(self):
        right = self.of_llama_cpp(support.DATA / "llama.cpp")
        self.assertEqual((right.verdict, right.judged), ("clean", right.expected), right)
        for key, place in (("Kcur-1:ROPE", "layer 1 attn.k_rope"),
                           ("ffn_gate-2:MUL_MAT", "layer 2 mlp.gate")):
            passes = passes_of_llama_cpp()
            for tensors in passes:
                tensors[key] = tensors[key] * np.float32(1.001)
            self.assertEqual(self.of_llama_cpp(self.saved_passes(passes)).first.place, place)
        # Layers before the last are read by later tokens.
        passes = passes_of_llama_cpp()
        passes[0]["ffn_inp-1:ADD"] = passes[0]["ffn_inp-1:ADD"][[3, 6]]
        found = self.of_llama_cpp(self.saved_passes(passes)).first
        self.assertEqual((found.place, found.verdict), ("layer 1 attn.residual", "structural"))

    def saved_passes(self, passes):
        dump = self.folder / "dump"
        dump.mkdir(exist_ok=True)
        for number, tensors in enumerate(passes):
            np.savez(dump / f"pass{number}.npz", **tensors)
        return dump

    def test_attention_of_a_cache_of_fp16_is_held_to_its_roundings(self):
        """As ggml's CPU kernels compute it, of many rows and of few."""
        for kernel, scale, right, wrong in (
                (of_many_rows, 1, ("cache_fp16", "flash_fp16"), ("fused",)),
                (of_few_rows, 1, ("flash_fp16",), ("cache_fp16", "operands_fp16")),
                (of_few_rows, 1.1, (), ("flash_fp16",))):
            passes = passes_of_llama_cpp()
            attend(passes, lambda q, k, v: kernel(q * np.float32(scale), k, v))
            _, out = self.imported("llama.cpp", self.saved_passes(passes), model=TINY)
            for contract in (*right, *wrong):
                with self.subTest(kernel=kernel.__name__, scale=scale, contract=contract):
                    found = lockstep.judge(out, TINY, "--points", "attn.out", "--rounding",
                                           f"attn.out={contract}")
                    self.assertEqual(found.status, contract in wrong, found)

    def test_the_first_of_a_place_that_can_be_read_and_fits_is_taken(self):
        arrays = {"tokens": np.arange(3), "layers.0.mlp.norm": np.array([None]),
                  "layers.0.mlp.norm#1": np.ones((2, 64), "f4"),
                  "layers.0.mlp.norm#2": np.full((3, 64), 2, "f4"),
                  "layers.0.mlp.norm#3": np.full((3, 64), 3, "f4")}
        np.savez(self.folder / "x.npz", **arrays)
        (self.folder / "m.json").write_text(json.dumps({
            "like": "points", "points": [{"match": r"layers\.(\d+)\.mlp\.norm(#\d)?",
                                          "to": "mlp.norm"}]}))
        report, out = self.imported(str(self.folder / "m.json"), self.folder / "x.npz")
        with lockstep.Trace(out) as trace:
            self.assertEqual(len(trace.tensors), 1)
            np.testing.assert_array_equal(trace["mlp.norm", 0], np.full((3, 64), 2))
        self.assertEqual(len(report.skipped), 2, report.skipped)
        self.assertIn("objects that are no numbers", report.skipped[0])

    def test_files_without_pickles_need_no_torch(self):
        np.savez(self.folder / "x.npz", tokens=np.arange(3), embed=np.ones((3, 64), "f4"))
        made = subprocess.run([sys.executable, "-c", (
            "import os, sys; sys.modules['torch'] = sys.modules['safetensors'] = None\n"
            "from lockstep import command\n"
            "for source, names in ((sys.argv[1], 'points'), (sys.argv[2], 'huggingface')):\n"
            "    if os.path.exists(sys.argv[3]): os.remove(sys.argv[3])\n"
            "    status = command.main([source, sys.argv[3], '--map', names, '--model',\n"
            "                           sys.argv[4], '--tokens', '1,2,3'])\n"
            "    assert status == 0\n"), self.folder / "x.npz", self.saved(), self.folder / "o.h5",
            TINY], env=os.environ | {"PYTHONPATH": str(support.PACKAGE)}, capture_output=True,
            text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        with lockstep.Trace(self.folder / "o.h5") as trace:
            self.assertEqual(trace.tensors[0].dtype, "bf16")
            np.testing.assert_array_equal(trace["mlp.down", 0], np.full((3, 64), 1.5))

    def saved(self):
        from safetensors.torch import save_file
        path = self.folder / "x.safetensors"
        save_file({"model.layers.0.mlp.down_proj": torch.full((3, 64), 1.5).bfloat16(),
                   "model.layers.1.mlp.down_proj": torch.full((3, 64), 1.5).double()}, path)
        return path

    def test_the_old_layout_and_what_is_no_tensor(self):
        self.made("sglang_dumper", True)
        report, out = self.imported("sglang")
        with lockstep.Trace(out) as trace:
            self.assert_same(trace, FUSED)
        self.assertEqual(list(report.unknown), ["rids"])

    def test_logits_of_pass_files_stand_one_file_later(self):
        self.made("pass_files", True)
        report, out = self.imported("vllm")
        with lockstep.Trace(out) as trace:
            kept = [info.number for info in trace.tensors if info.point == "logits"]
            self.assertEqual(kept, [0])  # those of the last pass were never written
            np.testing.assert_array_equal(trace.tensor("logits", number=0),
                                          self.right.tensor("logits", number=0))
        self.assertEqual(sum("attn_mode" in what for what in report.skipped), 2)

    def test_a_dump_is_judged_and_a_bug_in_it_named(self):
        self.made("sglang_dumper")
        _, out = self.imported("sglang")
        verdict = lockstep.judge(out, TINY)
        self.assertEqual(verdict.findings, (), verdict)
        self.assertGreaterEqual(verdict.judged / verdict.expected, 0.85)
        file = next((self.folder / "dump").glob(
            "step=1___*name=non_intrusive__model.layers.2.mlp.down_proj.output___*"))
        content = torch.load(file, weights_only=True)
        content["value"][0, 5] += 1
        torch.save(content, file)
        _, out = self.imported("sglang")
        first = lockstep.judge(out, TINY).first
        self.assertEqual((first.place, first.number, first.index[1]), ("layer 2 mlp.down", 1, 5))

    def test_what_the_debugger_of_transformers_wrote(self):
        from transformers.model_debugging_utils import model_addition_debugger_context
        ids = tokens(7, 3, 320)
        with model_addition_debugger_context(self.model, debug_path=str(self.folder / "dump"),
                                             do_prune_layers=False, use_repr=False), \
                torch.no_grad():
            logits = self.model.forward(ids).logits
        report, out = self.imported("huggingface")
        with lockstep.Trace(out) as trace:
            self.assertEqual([row.token for row in trace.passes[0].rows], ids[0].tolist())
            np.testing.assert_array_equal(trace["logits"], logits[0].float().numpy())
            self.assertEqual({info.point for info in trace.tensors}, set(HOOKED))
            self.assertEqual(report.tensors + 1, len(trace.tensors))
        verdict = lockstep.judge(out, TINY)
        self.assertEqual(verdict.findings, (), verdict)

    @unittest.skipUnless(importlib.util.find_spec("polygraphy"), "polygraphy is not installed")
    def test_what_polygraphy_wrote(self):
        from polygraphy.comparator import IterationResult, RunResults
        from polygraphy.json import save_json
        iterations, inputs = [], []
        for seen in dumps_made.fused_passes(self.right):
            outputs = {f"/model/layers.{i}/mlp/down_proj/MatMul_output_0":
                       seen.modules[f"model.layers.{i}.mlp.down_proj"][0].float().numpy()
                       for i in range(3)}
            outputs["logits"] = seen.modules["logits_processor"][0]  # one as torch has it
            iterations.append(IterationResult(outputs, runner_name="trt"))
            inputs.append({"input_ids": seen.tokens[None].numpy(),
                           "position_ids": seen.positions[None].numpy()})
        results = RunResults()
        results.append(("trt", iterations))
        results.save(str(self.folder / "results.json"))
        save_json(inputs, str(self.folder / "inputs.json"))
        _, out = self.imported("onnx", self.folder / "results.json")
        with lockstep.Trace(out) as trace:
            self.assert_same(trace, ("mlp.down", "logits", "token"))

    def test_safetensors_with_names_of_modules(self):
        from safetensors.torch import save_file
        tensors = {f"model.layers.{i}.mlp.down_proj": dumps_made.tensor_of(self.right, 0,
                                                                           "mlp.down", i)
                   for i in range(3)}
        save_file(tensors, self.folder / "run.safetensors")
        rows = self.right.passes[0].rows
        _, out = self.imported("huggingface", self.folder / "run.safetensors",
                               tokens=[row.token for row in rows])
        with lockstep.Trace(out) as trace:
            np.testing.assert_array_equal(trace["mlp.down", 2],
                                          self.right.tensor("mlp.down", 2, number=0))


class OverRanks(InFolder):
    """Dumps of two ranks, as tools write them of a model that ranks share, become one trace."""

    WRITERS = {"sglang_dumper": ("sglang", False), "pass_files": ("sglang", False),
               "vllm_intermediates": ("vllm", True), "msprobe": ("vllm", True),
               "tensorrt_llm_hooks": ("tensorrt-llm", True)}

    @classmethod
    def setUpClass(cls):
        cls.base = support.tempfile.TemporaryDirectory()
        path = f"{cls.base.name}/two.trace"
        subprocess.run([os.environ["LOCKSTEP"], "run", "--model", TINY, "--tp", "2", "--tokens",
                        "5,17,300,2", "--tokens", "7,8", "--max-new", "2", "--ignore-eos", "-q",
                        "--keep", "full", "--trace", path], check=True, capture_output=True)
        cls.two = lockstep.Trace(path)

    @classmethod
    def tearDownClass(cls):
        cls.two.close()
        cls.base.cleanup()

    def dumped(self, writer, spoil=None):
        """The report and the trace of a dump by that writer; spoil(rank, point, layer, values):
        changes what a rank dumped."""
        names, reduced = self.WRITERS[writer]
        source, out = self.folder / writer, self.folder / "out.h5"
        out.unlink(missing_ok=True)
        source.mkdir()
        for rank in range(2):
            view = dumps_made.OfRank(self.two, rank, 2, reduced)
            if spoil:
                whole = view.tensor
                view.tensor = lambda point, layer=None, number=0, rank=rank, whole=whole: spoil(
                    rank, point, layer, whole(point, layer, number=number).copy())
            getattr(dumps_made, writer)(view, source)
        return lockstep.import_dump(source, out, names=names, model=TINY), out

    def test_parts_are_joined_and_judged_as_the_run_was(self):
        for writer, (_, reduced) in self.WRITERS.items():
            with self.subTest(writer=writer):
                report, out = self.dumped(writer)
                if writer in ("sglang_dumper", "tensorrt_llm_hooks"):  # with partial sums, without
                    verdict = lockstep.judge(out, TINY)
                    self.assertEqual(verdict.findings, (), verdict)
                    self.assertGreaterEqual(verdict.judged / verdict.expected, 0.7, report)
                with lockstep.Trace(out) as trace:
                    self.assertEqual(trace.provenance["ranks"], "2")
                    self.assertNotIn("ranks_apart", trace.provenance)
                    shown = {info.point for info in trace.tensors}
                    summed = "attn.o" if reduced else "attn.o_partial"
                    for point, layer in (("attn.k", 0), ("mlp.gate", 1), (summed, 2)):
                        np.testing.assert_array_equal(trace.tensor(point, layer, number=0),
                                                      self.two.tensor(point, layer, number=0))
                    self.assertEqual("attn.o_partial" in shown, not reduced)

    def test_a_bug_of_one_rank_names_it(self):
        def copy_of_norm(rank, point, layer, values):
            if (rank, point, layer) == (1, "mlp.norm", 1):
                values[-1, 3] += 1
            return values

        def gate(rank, point, layer, values):
            if (rank, point, layer) == (1, "mlp.gate", 2):
                values[-1, 3] += 1
            return values

        _, out = self.dumped("sglang_dumper", copy_of_norm)
        self.assertIn("rank 1 leaves rank 0 at layer 1 mlp.norm", lockstep.judge(out, TINY).story)
        _, out = self.dumped("msprobe", gate)
        verdict = lockstep.judge(out, TINY)
        self.assertEqual(verdict.first.place, "layer 2 mlp.gate", verdict)
        self.assertIn("rank 1", verdict.first.rule)

    def test_ranks_that_are_not_all_there_are_refused(self):
        source = self.folder / "dump"
        source.mkdir()
        dumps_made.msprobe(dumps_made.OfRank(self.two, 0, 2, True), source)
        for folder in source.glob("step*/rank0"):
            shutil.copytree(folder, folder.with_name("rank2"))
        self.refused("has ranks 0, 2: all from 0 on were wanted", lockstep.import_dump, source,
                     self.folder / "out.h5", names="vllm", model=TINY)
        dumps_made.tensorrt_llm_npy(self.two, self.folder / "npy")
        (self.folder / "npy/PP_1/TP_1").rename(self.folder / "npy/PP_1/TP_2")
        self.refused("each wrote over the files of the others", lockstep.import_dump,
                     self.folder / "npy", self.folder / "out.h5", names="tensorrt-llm",
                     model=TINY)


class Trap:
    """An object whose pickle, when it is read by whoever trusts it, makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Refused(InFolder):
    """Files that are foreign or hostile; nothing in them runs, and no trace is written."""

    def import_(self, names="sglang", source=None, **options):
        return lockstep.import_dump(source or self.folder / "dump", self.folder / "out.h5",
                                    names=names, **{"model": TINY, **options})

    def setUp(self):
        super().setUp()
        (self.folder / "dump").mkdir()
        self.trap = Trap(self.folder / "sprung")

    def tearDown(self):
        self.assertFalse(self.trap.path.exists())
        self.assertFalse(list(self.folder.glob("out*")))

    def test_pickles_that_run_something(self):
        torch.save({"model.norm": self.trap}, self.folder / "dump/Pass00000.pt")
        self.refused("Pass00000.pt is not read", self.import_)

    def test_a_hostile_file_among_others_is_skipped(self):
        name = "step=0___rank=0___dump_index={}___name={}___recompute_status=disabled.pt"
        torch.save({"value": self.trap}, self.folder / "dump" /
                   name.format(1, "non_intrusive__model.norm.output"))
        torch.save({"value": torch.arange(3)}, self.folder / "dump" / name.format(2, "input_ids"))
        self.refused("is not read: it holds an object that is no tensor", self.import_)

    def test_arrays_of_objects(self):
        np.save(self.folder / "dump/embed.npy", np.array([self.trap], object))
        np.save(self.folder / "dump/tokens.npy", np.arange(1))
        self.refused("objects that are no numbers", self.import_, "points")
        np.savez(self.folder / "x.npz", embed=np.array([self.trap], object), tokens=np.arange(1))
        self.refused("objects that are no numbers", self.import_, "points",
                     self.folder / "x.npz")

    def test_damaged_and_foreign_files(self):
        self.refused("looks like no dump", self.import_)
        self.refused("is not there", self.import_, source=self.folder / "no")
        (self.folder / "dump/Pass00000.pt").write_bytes(b"PK\x03\x04 cut")
        self.refused("damaged", self.import_)
        (self.folder / "x.npz").write_bytes(b"PK\x03\x04 cut")
        self.refused("no npz", self.import_, "points", self.folder / "x.npz")
        (self.folder / "x.safetensors").write_bytes(pickle.dumps(self.trap))
        self.refused("no safetensors", self.import_, "points", self.folder / "x.safetensors")
        for entry in ({"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}, [], {},
                      {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}):
            header = json.dumps({"embed": entry}).encode()
            (self.folder / "x.safetensors").write_bytes(
                len(header).to_bytes(8, "little") + header + bytes(8))
            self.refused("no safetensors", self.import_, "points", self.folder / "x.safetensors")
        (self.folder / "r.json").write_text('{"lst": [], "polygraphy_class": "RunResults"}')
        self.refused("results of 0 runners", self.import_, "onnx", self.folder / "r.json")

    def test_files_that_are_damaged_anywhere(self):
        """Bytes that are others, cut files, and headers that are nested."""
        rows = {f"layer0.{name}": np.ones((3, 128), np.float32)
                for name in ("attn.norm", "mlp.norm")}
        np.savez(self.folder / "x.npz", **rows)
        np.save(self.folder / "layer0.attn.norm.npy", rows["layer0.attn.norm"])
        torch.save({key: torch.ones(3, 128) for key in rows}, self.folder / "dump/Pass00000.pt")
        deep = b'{"embed":' + b"[" * 100_000
        (self.folder / "x.safetensors").write_bytes(len(deep).to_bytes(8, "little") + deep)
        self.refused("", self.import_, "points", self.folder / "x.safetensors")
        (self.folder / "r.json").write_text(
            '{"polygraphy_class": "RunResults", "lst": [["a", [' + "[" * 100_000)
        self.refused("", self.import_, "onnx", self.folder / "r.json")
        choose = random.Random(1)
        for path in (self.folder / "x.npz", self.folder / "layer0.attn.norm.npy",
                     self.folder / "dump/Pass00000.pt"):
            sound = path.read_bytes()
            for _ in range(25):
                bytes_ = bytearray(sound)
                for _ in range(3):
                    bytes_[choose.randrange(len(bytes_))] ^= 1 << choose.randrange(8)
                path.write_bytes(bytes_[:choose.choice((len(bytes_), choose.randrange(4000)))])
                with contextlib.suppress(lockstep.LockstepError):
                    self.import_("points", path if path.suffix != ".pt" else None)
                (self.folder / "out.h5").unlink(missing_ok=True)

    def test_what_nothing_can_be_made_of_is_said_by_name(self):
        dump = self.folder / "dump"
        norm = {"model.layers.0.input_layernorm:out": np.zeros((3, 64), np.float32)}

        def refused(part, arrays, **options):
            for file in dump.iterdir():
                file.unlink()
            np.savez(dump / "x.npz", **arrays)
            self.refused(part, self.import_, "huggingface", **options)

        ids = {"input_ids": np.arange(3)}
        self.refused("it is an empty folder; --format says what it is", self.import_)
        refused("says not which tokens it was fed", norm)
        refused("besides what its passes were fed", ids)
        refused("input_ids: an array of float64 has no place", {"input_ids": np.arange(3) + 0.5})
        refused("layers.99.input_layernorm:out is of layer 99, and the model has 3",
                ids | {"model.layers.99.input_layernorm:out": np.zeros((3, 64), np.float32)})
        refused("the map huggingface has no point for 1 of its names, the first other",
                ids | {"other": np.zeros(3, np.float32)})
        refused("does not look like msprobe: leave --format out", ids | norm, kind="msprobe")
        refused("no is not there: the folder of a checkpoint was wanted", ids, model="no")
        (dump / "x.npz").unlink()
        (dump / "input_ids.npy").write_bytes(b"hello")
        self.refused("it is no .npy file, which begins with", self.import_, "huggingface")
        self.refused("it is a folder of input_ids.txt;", lambda: (
            (dump / "input_ids.npy").rename(dump / "input_ids.txt"), self.import_()))
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            command.main([str(dump), "x.h5", "--map", "sglang", "--model", TINY, "--tokens",
                          "1,x"])
        self.assertEqual(said.getvalue(),
                         "error: --tokens: ids such as 1,2,3 were wanted, found 'x'\n")

    def test_maps(self):
        np.savez(self.folder / "x.npz", tokens=np.arange(3), positions=np.arange(3))
        for content, part in (("{", "no JSON"), ("[]", "no JSON object"),
                              ('{"points": [{"match": "(", "to": "embed"}]}', "not understood"),
                              ('{"points": [{"match": "x", "to": "mlp.upp"}]}',
                               "m.json names 'mlp.upp', which is no point: mlp.up is the nearest"),
                              ('{"pints": []}', "which no map has"),
                              ('{"points": [], "schema": "hff"}', "rounding contracts")):
            (self.folder / "m.json").write_text(content)
            self.refused(part, self.import_, str(self.folder / "m.json"), self.folder / "x.npz")
        self.refused("sglang is the nearest", self.import_, "sglan")
        self.assertEqual(mapping.names(), [
            "edge-llm", "huggingface", "llama.cpp", "nano-vllm", "onnx", "points", "sglang",
            "tensorrt-llm", "vllm", "vllm-hidden-states"])
        for name in mapping.names():
            self.assertTrue(mapping.read_map(name).rules)

    def test_the_command_says_it_in_one_line(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            status = command.main([str(self.folder / "no"), str(self.folder / "out.h5"), "--map",
                                   "sglang", "--model", TINY])
        self.assertEqual(status, 2)
        self.assertRegex(said.getvalue(), r"^error: .* is not there: a dump was wanted\n$")


if __name__ == "__main__":
    support.main()
