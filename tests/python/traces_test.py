"""The package without torch: writes what the command accepts, reads what the command writes.

python traces_test.py LOCKSTEP
"""
import itertools
import json
import math
import os
import re
import struct
import subprocess
import sys
import types
import unittest

import h5py
import numpy as np
import xxhash

import support
from support import QWEN3, QWEN25, InFolder

import lockstep
from lockstep import contracts, digest, elements, graph, hdf5, points
from lockstep.digest import COUNTS, NUMBERS
from lockstep.journal import Journal
from lockstep.tensor_file import TensorFile

sys.path.append(str(support.ROOT / "tests"))
import qwen_graph  # noqa: E402


def has(name):
    import importlib.util
    return importlib.util.find_spec(name) is not None


def run(*arguments):
    made = subprocess.run([os.environ["LOCKSTEP"], *arguments], capture_output=True, text=True,
                          check=True)
    return made.stdout


class Pages(unittest.TestCase):
    def test_what_they_call_of_a_module_is_there_after_import_lockstep(self):
        pages = (support.ROOT / "README.md", support.PACKAGE / "README.md")
        called = {name for page in pages
                  for name in re.findall(r"\b(lockstep\.\w+\.\w+)\(", page.read_text())}
        self.assertLessEqual({"lockstep.bundle.write_bundle", "lockstep.llama_cpp.Recorder"},
                             called)
        for name in sorted(called):
            with self.subTest(name):  # another test may have imported a module of it
                made = subprocess.run([sys.executable, "-c", f"import lockstep; {name}"],
                                      env=os.environ | {"PYTHONPATH": str(support.PACKAGE)},
                                      capture_output=True, text=True, check=False)
                self.assertEqual(made.returncode, 0, made.stderr)


class Tables(unittest.TestCase):
    def test_points_are_those_of_the_command(self):
        listed = json.loads(run("points", "--format", "json"))
        self.assertEqual({p["point"]: p["axes"] for p in listed}, points.AXES)
        self.assertEqual([p["point"] for p in listed], list(points.AXES))
        self.assertEqual({p["point"] for p in listed if p["of"] == "model"}, points.MODEL_POINTS)

    def test_an_engine_by_name_says_where_each_point_rounds(self):
        self.assertEqual(set(contracts.rounding("fused").values()), {"fused"})
        vllm = contracts.rounding("vllm")
        self.assertEqual(list(vllm), list(points.AXES))
        self.assertEqual((vllm["attn.q_rope"], vllm["attn.q"]), ("tables_rounded", "fused"))
        self.assertRaisesRegex(lockstep.LockstepError, "'vlm' .* vllm is the nearest",
                               contracts.rounding, "vlm")

    def test_graphs_are_those_of_another_hand(self):
        for config, other, shares in (
                (QWEN3, qwen_graph.qwen_graph(6, True), False),
                (QWEN3, qwen_graph.qwen_graph(6, True, shares=True), True),
                (QWEN25, qwen_graph.qwen_graph(6, False), False),
                (support.EXPERTS, qwen_graph.qwen_graph(3, True, range(3)), False)):
            made = graph.graph_of(graph.read_config(config), shares=shares)
            self.assertEqual([(n.point, n.layer, list(n.inputs)) for n in made],
                             [(n.point, n.layer, n.inputs) for n in other])

    def test_heads_are_as_wide_as_their_family_has_them(self):
        # As transformers' configurations of the families have it where head_dim is not named.
        for checkpoint, wide in ((QWEN3, 128), (QWEN25, None)):
            config = dict(graph.read_config(checkpoint))
            config.pop("head_dim", None)
            wanted = wide or config["hidden_size"] // config["num_attention_heads"]
            self.assertEqual(graph.dimensions(config)["D"], wanted)


class Digests(unittest.TestCase):
    def assert_as_defined(self, tensor, found):
        """By the definitions of traces/README.md, one tensor and one statistic at a time."""
        values = tensor.values().ravel()
        finite = values[np.isfinite(values)].astype(np.float64)
        self.assertEqual(found.xxh3, xxhash.xxh3_64_intdigest(tensor.bits.tobytes()))
        self.assertEqual((found.n, found.nan, found.posinf, found.neginf),
                         (values.size, np.isnan(values).sum(), np.isposinf(values).sum(),
                          np.isneginf(values).sum()))
        self.assertEqual(found.zeros, (values == 0).sum())
        tiny = elements.TINY[tensor.dtype]
        self.assertEqual(found.subnormal, ((values != 0) & (np.abs(values) < tiny)).sum())
        bins = (values.view(np.uint32) >> 23) & 0xFF
        np.testing.assert_array_equal(found.exponents, np.bincount(bins, minlength=256))
        if not finite.size:
            self.assertEqual((found.absmax_at, found.min, found.rms, found.m2), (-1, 0, 0, 0))
            return
        self.assertEqual((found.min, found.max, found.absmax),
                         (finite.min(), finite.max(), np.abs(finite).max()))
        self.assertEqual(abs(values[found.absmax_at]), found.absmax)
        off = finite - finite.mean()
        for got, want in ((found.mean, finite.mean()), (found.m2, (off**2).sum()),
                          (found.sum_abs, np.abs(finite).sum()),
                          (found.sum_squares, (finite**2).sum()),
                          (found.rms, math.sqrt((finite**2).mean()))):
            self.assertAlmostEqual(got, want, delta=1e-12 * np.abs(finite**2).sum() + 1e-300)

    def test_many_at_once_are_each_as_defined(self):
        random = np.random.default_rng(1)
        hard = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -3.0e38, 1.5], np.float32)
        made = [elements.elements_of(random.normal(size=(3, 5)).astype(np.float32)),
                elements.elements_of(hard), elements.elements_of(hard[:3]),
                elements.elements_of(np.zeros((0, 4), np.float32)),
                elements.elements_of(np.array([0x7FC0, 0xFF80, 0x0001, 0x3F80], np.uint16), "bf16"),
                elements.elements_of(np.array([6e-8, -6e-5, 65504, np.inf], np.float16)),
                elements.elements_of(np.arange(-4, 5)),
                elements.elements_of(random.normal(3, 2, 700_001).astype(np.float32)),
                # In blocks, of which one has no number and one has some.
                elements.elements_of(np.concatenate([
                    np.full(digest.BLOCK, np.nan, np.float32), np.resize(hard, digest.BLOCK),
                    random.normal(-1, 2, 99).astype(np.float32)])),
                elements.elements_of(np.full(70_000, -np.inf, np.float32)),
                # Of all patterns of 16 bits, and of one sign alone.
                elements.elements_of(random.integers(0, 1 << 16, 300_001).astype(np.uint16),
                                     "bf16"),
                elements.elements_of(random.integers(0, 1 << 16, 70_000).astype(np.uint16)
                                     .view(np.float16)),
                elements.elements_of(random.normal(-9, 1, (300, 300)).astype(np.float16)),
                elements.elements_of(np.full(70_000, 0x7F80, np.uint16), "bf16")]
        digests = digest.Digests(len(made))
        digests.put(range(len(made)), made)
        for i, tensor in enumerate(made):
            with self.subTest(tensor=i):
                self.assert_as_defined(tensor, types.SimpleNamespace(
                    exponents=digests.exponents[i],
                    **{name: column[i] for name, column in digests.columns.items()}))

    def test_arrays_that_have_no_place_are_refused(self):
        with self.assertRaisesRegex(lockstep.LockstepError, "no bf16"):
            elements.elements_of(np.float32([1.001]), "bf16")
        with self.assertRaisesRegex(lockstep.LockstepError, "float64"):
            elements.elements_of(np.zeros(3))


class Engines(InFolder):
    """A trace of the engine, read, and written anew by the Writer."""

    @classmethod
    def setUpClass(cls):
        cls.base = support.tempfile.TemporaryDirectory()
        cls.path = f"{cls.base.name}/engine.h5"
        run("run", "--model", QWEN3, "--tokens", "5,6,7,8,9", "--tokens", "11,12,13", "--max-new",
            "3", "--keep", "full", "--trace", cls.path)
        cls.trace = lockstep.Trace(cls.path)

    @classmethod
    def tearDownClass(cls):
        cls.trace.close()
        cls.base.cleanup()

    def rewrite(self, path, change=lambda point, layer, tensor: tensor, tables=False):
        """The same numbers by the Writer, those of RoPE's tables if that is asked;
        change(point, layer, array) alters them."""
        with lockstep.Writer(path, QWEN3, dtype="bf16", provenance={"engine": "mine"}) as writer:
            for number, run_ in enumerate(self.trace.passes):
                writer.begin_pass([row.token for row in run_.rows],
                                  [row.position for row in run_.rows],
                                  [row.request for row in run_.rows])
                for info in self.trace.tensors:
                    if info.number != number or (info.point.startswith("rope") and not tables):
                        continue
                    if info.point == "attn.kv":
                        self.show_cache(writer, info)
                        continue
                    array = self.trace.bits(info)
                    writer.show(info.point, info.layer,
                                change(info.point, info.layer, array.values())
                                if info.point != "token" else array.bits,
                                dtype="bf16" if array.dtype == "bf16" else "")

    def show_cache(self, writer, info):
        """K and V of the positions that a request has, as the passes so far computed them."""
        request, end = info.rows[0][0], info.rows[-1][1] + 1
        k, v = (np.stack([self.trace[point, info.layer, request, at] for at in range(end)])
                for point in ("attn.k_rope", "attn.v"))
        writer.show_cache(info.layer, request, np.stack((k, v), axis=1), dtype="bf16",
                          hashes_only=info.layer % 2 == 0)

    def test_tensors_are_those_of_the_file(self):
        with h5py.File(self.path) as file:
            want = file["tensors/pass000000/layer003/attn.q"][()]
            np.testing.assert_array_equal(self.trace.tensor("attn.q", 3, number=0), want)
            self.assertEqual(want.dtype, np.float32)
        row = self.trace.tensor("attn.q", 3, request=1, position=2)
        np.testing.assert_array_equal(row, want[7])
        np.testing.assert_array_equal(self.trace["attn.q", 3, 1, 2], want[7])
        self.assertEqual(self.trace["attn.q", 3].shape, (12, 6, 64))
        self.assertEqual(self.trace["attn.q", 3, 0].shape, (7, 6, 64))
        self.assertEqual(self.trace.rows("logits").tolist()[:2], [[0, 0, 4], [0, 1, 2]])
        self.assertEqual(self.trace["token"].dtype, np.int32)
        self.assertEqual(self.trace.requests[1].prompt, [11, 12, 13])
        self.assertEqual(len(self.trace.requests[1].tokens), 3)
        self.assertEqual(self.trace.passes[0].rows[5], lockstep.Row(1, 0, 11))
        self.assertIn("prompt_xxh3" if "prompt_xxh3" in self.trace.provenance else "model",
                      self.trace.provenance)

    def test_what_is_not_there_is_a_sentence(self):
        self.refused("attn.q is the nearest", self.trace.tensor, "attn.qq", 0)
        self.refused("no attn.q of layer 9", self.trace.tensor, "attn.q", 9)
        self.refused("name one", self.trace.tensor, "attn.q")
        self.refused("position 77", self.trace.tensor, "attn.q", 0, position=77)
        self.refused("digest alone", self.trace.tensor, "attn.kv", 0)
        self.refused("is not there", lockstep.Trace, self.folder / "no.h5")
        (self.folder / "other.h5").write_bytes(b"nothing")
        self.refused("no HDF5 file", lockstep.Trace, self.folder / "other.h5")

    def test_a_folder_of_segments_reads_as_the_file(self):
        folder = self.folder / "x.trace"
        run("run", "--model", QWEN3, "--tokens", "5,6,7,8,9", "--max-new", "10", "--keep", "full",
            "--trace", folder)
        with lockstep.Trace(folder) as trace:
            self.assertGreater(len(trace._files), 1)
            self.assertEqual(trace["mlp.up", 2].shape, (14, 576))
            np.testing.assert_array_equal(trace["mlp.up", 2, 0, 4], self.trace["mlp.up", 2, 0, 4])

    def test_a_journal_is_what_inspect_prints(self):
        for name, kept in (("d.journal", []), ("d.trace", ["--keep", "digest"])):
            path = self.folder / name
            run("generate", "--model", QWEN3, "--tokens", "5,6,7,8,9", "--tokens", "3", "--max-new",
                "5", "--format", "json", *kept, "--trace", path)
            lines = [json.loads(line) for line in run(
                "inspect", path, "--journal").splitlines()]
            told = [line for line in lines if line["kind"] == "tensor"]
            read = Journal(path if path.is_file() else path / "run.journal")
            self.assertEqual((read.problem, read.manifest), ("", lines[0]))
            found = [tensor for one in read.passes for tensor in one.tensors]
            self.assertEqual(len(found), len(told))
            for tensor, line in zip(found, told):
                digest = tensor.digest
                self.assertEqual(
                    (tensor.seq, tensor.number, tensor.layer, tensor.point, tensor.dtype,
                     list(tensor.shape), [f"{number:016x}" for number in tensor.row_xxh3.tolist()]),
                    tuple(line[name] for name in ("seq", "pass", "layer", "point", "dtype", "shape",
                                                  "row_xxh3")))
                self.assertEqual(tensor.rows, tuple(
                    (request, first + i) for request, first, count in line["rows"]
                    for i in range(count)))
                for field in (*COUNTS, *NUMBERS, "n"):
                    want, got = line[field], getattr(digest, field)
                    self.assertTrue(got == want or (want == "NaN" and got != got), field)
                self.assertEqual(f"{digest.xxh3:016x}", line["xxh3"])
                self.assertEqual({str(i): n for i, n in enumerate(digest.exponents.tolist()) if n},
                                 line["exponents"])

    def test_a_trace_of_digests_has_its_tables(self):
        path = self.folder / "tables.trace"
        run("generate", "--model", QWEN3, "--tokens", "5,6,7,8,9", "--max-new", "3", "--format",
            "json", "--keep", "digest", "--trace", path)
        with lockstep.Trace(path) as trace:
            self.assertEqual([len(one.rows) for one in trace.passes], [5, 1, 1])
            self.assertEqual(trace.requests[0].prompt, [5, 6, 7, 8, 9])
            self.assertEqual(trace.rows("mlp.up", 2).tolist(), [[0, 0, i] for i in range(5)]
                             + [[1, 0, 5], [2, 0, 6]])
            self.refused("digest alone", trace.tensor, "mlp.up", 2)
            if has("pandas"):
                self.assertEqual(trace.index().point.tolist(), [t.point for t in trace.tensors])

    def test_a_journal_that_was_cut_is_read_as_far_as_it_is_whole(self):
        path = self.folder / "cut.journal"
        run("generate", "--model", QWEN3, "--tokens", "5", "--max-new", "3", "--format", "json",
            "--trace", path)
        whole = path.read_bytes()
        altered = whole[:-20000] + bytes([whole[-20000] ^ 1]) + whole[-19999:]
        for change, passes in ((whole[:-1], 3), (whole[:-20000], 2), (altered, 2)):
            path.write_bytes(change)
            read = Journal(path)
            self.assertIn("was cut or damaged", read.problem)
            self.assertEqual(len(read.passes), passes)
        forged = bytearray(whole[:24]) + bytes(8) + struct.pack("<II", 2, 1) + b"[]"
        struct.pack_into("<Q", forged, 24, xxhash.xxh3_64_intdigest(bytes(forged[24:])))
        path.write_bytes(forged)
        self.refused("cannot be read: it is damaged", Journal, path)
        for bad in (b"", b"lockstep", whole[:20], b"x" * 100):
            path.write_bytes(bad)
            self.refused("does not begin as one", Journal, path)

    @unittest.skipUnless(has("pandas"), "pandas is not installed")
    def test_index_is_a_data_frame(self):
        frame = self.trace.index()
        self.assertEqual(len(frame), len(self.trace.tensors))
        some = frame[(frame.point == "mlp.up") & (frame.layer == 2) & (frame["pass"] == 0)].iloc[0]
        values = self.trace.tensor("mlp.up", 2, number=0)
        self.assertEqual((some.absmax, some["shape"]), (np.abs(values).max(), (8, 576)))

    @unittest.skipUnless(has("xarray"), "xarray is not installed")
    def test_dataset_has_named_axes(self):
        data = self.trace.dataset("attn.q", "logits")
        self.assertEqual(dict(data["attn.q"].sizes), {"layer": 6, "row": 12, "head": 6, "dim": 64})
        row = data["attn.q"].sel(layer=3).isel(row=7)
        self.assertEqual((int(row.request), int(row.position)), (1, 2))
        np.testing.assert_array_equal(row, self.trace["attn.q", 3, 1, 2])
        self.assertEqual(data["logits"].dims, ("logit_row", "vocab"))
        self.assertIn("mlp.up", self.trace.dataset())

    def test_h5py_opens_what_either_writes(self):
        for path in (self.path, self.written()):
            with h5py.File(path) as file:
                index = file["index"]
                count = len(index["seq"])
                self.assertEqual({len(column) for column in index.values()
                                  if isinstance(column, h5py.Dataset)}, {count})
                edges = index["parts/shape_edges"][()]
                self.assertEqual((len(edges), edges[-1]), (count + 1, len(index["parts/shape"])))

    def test_columns_are_of_types_that_h5web_draws(self):
        """No compounds, no bits, no floats of 16 bits: those are in /tensors alone."""
        drawn = {np.dtype(kind) for kind in ("i1", "i2", "i4", "i8", "u1", "u4", "u8", "f8")}

        def look(name, found):
            if isinstance(found, h5py.Dataset) and not name.startswith("tensors/"):
                text = h5py.check_string_dtype(found.dtype)
                self.assertTrue(text or found.dtype in drawn, (name, found.dtype))
                self.assertTrue(text is None or text.encoding == "utf-8", name)

        for path in (self.path, self.written()):
            with h5py.File(path) as file:
                file.visititems(look)
                self.assertEqual(file.attrs["default"], "summary")  # what a viewer opens with
                self.assertEqual(file["summary/rms"].dtype, np.float64)

    @unittest.skipUnless(has("xarray") and has("h5netcdf"), "xarray or h5netcdf is not installed")
    def test_xarray_opens_the_index_as_a_table(self):
        import xarray
        for path in (self.path, self.written()):
            with xarray.open_dataset(path, group="index", engine="h5netcdf") as index:
                self.assertEqual(list(index.dims), ["seq"])
                frame = index.to_dataframe()
            with lockstep.Trace(path) as trace:
                self.assertEqual(len(frame), len(trace.tensors))
                some = frame[(frame.point == "mlp.up") & (frame.layer == 2) & (frame["pass"] == 0)]
                self.assertEqual(some.absmax.item(),
                                 np.abs(trace.tensor("mlp.up", 2, number=0)).max())

    def test_version_2_0_is_read(self):
        old = self.written()
        with h5py.File(old, "r+") as file:
            for name in list(file["index/parts"]):
                file.move(f"index/parts/{name}", f"index/{name}")
            del file["index/parts"]
            file.attrs["format_version"] = "2.0"
        hdf5.seal(old, hdf5.SEAL_BYTES)
        with lockstep.Trace(old) as trace:
            np.testing.assert_array_equal(trace["mlp.up", 2], self.trace["mlp.up", 2])
        self.assertTrue(lockstep.judge(old, QWEN3))

    def written(self):
        path = self.folder / "written.h5"
        self.rewrite(path)
        return path

    def test_what_is_written_is_judged(self):
        clean = self.folder / "clean.h5"
        self.rewrite(clean)
        verdict = lockstep.judge(clean, QWEN3)
        self.assertTrue(verdict, verdict)
        self.assertEqual((verdict.judged, verdict.status, verdict.first),
                         (verdict.expected, 0, None))
        with lockstep.Trace(clean) as trace:
            self.assertEqual([r.tokens for r in trace.requests],
                             [r.tokens for r in self.trace.requests])
        with h5py.File(clean) as file:
            tensor = file["tensors/pass000000/layer003/attn.q"]
            self.assertEqual((tensor.attrs["dtype"], tensor.attrs["axes"]),
                             ("bf16", "token, head, dim"))
            self.assertIsNone(tensor.chunks)
            self.assertEqual(file["index/rms"].dims[0].keys(), ["seq"])

    def test_tables_of_rope_are_judged_where_they_are_shown(self):
        path = self.folder / "tables.h5"
        self.rewrite(path, tables=True)
        verdict = lockstep.judge(path, QWEN3)
        self.assertTrue(verdict, verdict)
        with lockstep.Trace(path) as trace, lockstep.Trace(self.written()) as without:
            shown = [info.point for info in trace.tensors if info.point.startswith("rope")]
            self.assertEqual(shown[:2], ["rope.cos", "rope.sin"])
            self.assertEqual(trace.graph, graph.with_tables(without.graph))
            self.assertEqual([trace.graph[i].point for i in trace.graph[9].inputs],
                             ["attn.q_norm", "rope.cos", "rope.sin"])
        path.unlink()
        self.rewrite(path, lambda point, _, x: x + (point == "rope.sin"), tables=True)
        self.assertEqual(lockstep.judge(path, QWEN3).first.point, "rope.sin")

    def test_what_is_wrong_is_found_and_typed(self):
        def twice(point, layer, tensor):
            return tensor * 2 if (point, layer) == ("mlp.up", 4) else tensor
        self.rewrite(self.folder / "wrong.h5", twice)
        verdict = lockstep.judge(self.folder / "wrong.h5", QWEN3)
        self.assertFalse(verdict)
        self.assertEqual((verdict.verdict, verdict.status), ("diverged", 1))
        self.assertEqual((verdict.first.place, verdict.first.number), ("layer 4 mlp.up", 0))
        self.assertIn(verdict.first, verdict.findings)

    def test_trouble_is_raised_with_the_commands_sentence(self):
        self.refused("give the --model it was made with", lockstep.judge, self.path, QWEN25)
        self.refused("nothing is there", lockstep.judge, self.folder / "no.h5", QWEN3)
        self.refused("cannot be run", lockstep.judge, self.path, QWEN3, command=self.folder)


class TensorsByHand(InFolder):
    """libhdf5 reads what is written without it, and writes on."""

    def made(self, passes, layers, points):
        """A file of so many tensors of all dtypes, empty ones too; what is in it, by path."""
        kinds, want = list(elements.STORAGE.items()), {}
        file = TensorFile(self.folder / "x.h5")
        for number, layer, point in itertools.product(range(passes), range(layers), range(points)):
            dtype, stored = kinds[len(want) % len(kinds)]
            tensor = elements.Elements(
                np.arange(len(want) % 7 * 3, dtype=stored).reshape(-1, 3), dtype)
            path = f"/tensors/pass{number:06d}/layer{layer:03d}/point{point}"
            file.add(path, tensor, len(want))
            want[path] = tensor
        begin = file.finish(lambda name: f"axes of {name}")
        self.assertEqual(begin, 608 + sum(-(-tensor.nbytes // 8) * 8 for tensor in want.values()))
        return want

    def assert_has(self, file, want):
        found = []
        file["tensors"].visititems(lambda name, got: found.append(got.name) if
                                   isinstance(got, h5py.Dataset) else None)
        self.assertEqual(found, sorted(want))
        for seq, (path, tensor) in enumerate(want.items()):
            got = file[path]
            self.assertEqual((got.shape, got.chunks, dict(got.attrs)), (tensor.bits.shape, None, {
                "dtype": tensor.dtype, "axes": f"axes of {got.name.split('/')[-1]}", "seq": seq}))
            np.testing.assert_array_equal(
                hdf5.read_tensor(file, path, tensor.dtype).bits, tensor.bits)

    def test_groups_of_any_size(self):
        for sizes in ((0, 0, 0), (1, 1, 1), (3, 2, 5), (400, 1, 1), (2, 300, 1), (1, 1, 30)):
            want = self.made(*sizes)
            with hdf5.reopen(self.folder / "x.h5") as file:
                self.assert_has(file, want)
                for number in range(40):
                    file[f"more{number:02}/column"] = np.arange(number)
                file.attrs["long"] = "text" * 1000
            with h5py.File(self.folder / "x.h5") as file:
                self.assert_has(file, want)
                self.assertEqual((len(file), len(file["more39/column"])), (41, 39))


class Requests(InFolder):
    def test_what_a_request_entered_with_is_of_its_prompt(self):
        """Not what it comes back with, among which is what it chose."""
        path = self.folder / "x.h5"
        with lockstep.Writer(path, QWEN3) as writer:
            writer.begin_pass([8, 21], [3, 0], [0, 1], inherited={0: [5, 6, 7]},
                              decode=[True, False])
            writer.show("embed", None, np.zeros((2, 192), "f4"))
            writer.begin_pass([9], [4], inherited={0: [5, 6, 7, 8]})
            writer.show("embed", None, np.zeros((1, 192), "f4"))
        with lockstep.Trace(path) as trace:
            self.assertEqual([(r.id, r.prompt, r.tokens) for r in trace.requests],
                             [(0, [5, 6, 7], [8, 9]), (1, [21], [])])


    def test_passes_that_are_left_out_move_no_token_to_another_place(self):
        """What a request comes back with is its own; where nobody says that, it has no lists."""
        for inherited, lists in (({0: [5, 6, 7, 8]}, ([5, 6, 7, 8, 9], [30])), ({}, ([], []))):
            path = self.folder / f"{len(inherited)}.h5"
            with lockstep.Writer(path, QWEN3) as writer:
                for tokens, position in ([5, 6], 0), ([9], 4):
                    writer.begin_pass(tokens, range(position, position + len(tokens)),
                                      inherited=inherited if position else None)
                    writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
                    writer.show("token", None, np.int32([30]))
            with lockstep.Trace(path) as trace:
                self.assertEqual([(r.prompt, r.tokens) for r in trace.requests], [lists])

    def test_a_row_alone_is_of_decode_behind_one_that_got_logits(self):
        """The last token of a prompt may be a chunk, or a request's own behind a prefix."""
        path = self.folder / "x.h5"
        with lockstep.Writer(path, QWEN3) as writer:
            for tokens, positions, logit_rows in ([8, 9], [0, 1], []), ([10], [2], [0]):
                writer.begin_pass(tokens, positions, logit_rows=logit_rows)
                writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
            writer.show("token", None, np.int32([30]))
            writer.begin_pass([30, 11], [3, 2], [0, 1], inherited={1: [5, 6]})
            writer.show("embed", None, np.zeros((2, 192), "f4"))
            writer.show("token", None, np.int32([31, 40]))
        with lockstep.Trace(path) as trace:
            self.assertEqual([(r.id, r.prompt, r.tokens) for r in trace.requests],
                             [(0, [8, 9, 10], [30, 31]), (1, [5, 6, 11], [40])])
            self.assertEqual([[row.decode for row in run.rows] for run in trace.passes],
                             [[False, False], [False], [True, False]])

    def test_drafts_that_were_refused_are_none_of_its_tokens(self):
        """Of speculative decoding; nor are they of its prompt where nobody says what is decode."""
        for said in (None, True):
            path = self.folder / f"{said}.h5"
            with lockstep.Writer(path, QWEN3) as writer:
                for position, tokens, chosen in (
                        (0, [8, 9], [30]), (2, [30, 40, 50], [31, 0, 0]), (3, [31], [32]),
                        (4, [32, 33, 60], [33, 34, 0])):
                    rows = range(len(tokens)) if position else [1]
                    writer.begin_pass(tokens, range(position, position + len(tokens)),
                                      logit_rows=rows,
                                      decode=said and [position > 0] * len(tokens))
                    writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
                    writer.show("token", None, np.int32(chosen))
            with lockstep.Trace(path) as trace:
                self.assertEqual([(r.prompt, r.tokens, r.forced) for r in trace.requests],
                                 [([8, 9], [30, 31, 32, 33, 34], [])])
                self.assertEqual([run.rows[-1].decode for run in trace.passes],
                                 [False, True, True, True])

    def test_a_draft_that_stays_though_nobody_chose_it_is_not_forced(self):
        """Where others were refused; a text that was given in two calls has none that were."""
        for refused in (True, False):
            path = self.folder / f"{refused}.h5"
            with lockstep.Writer(path, QWEN3) as writer:
                for position, tokens, chosen in (
                        (0, [8, 9], [30]), (2, [30, 40], [31, 0]),
                        (3, [31], [32]) if refused else (4, [0], [32]),
                        (4, [32, 60], [33, 34]) if refused else (5, [32, 60], [33, 34]),
                        (6, [34], [35]) if refused else (7, [34], [35])):
                    writer.begin_pass(tokens, range(position, position + len(tokens)),
                                      logit_rows=range(len(tokens)) if position else [1])
                    writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
                    writer.show("token", None, np.int32(chosen))
            with lockstep.Trace(path) as trace:
                request = trace.requests[0]
                self.assertEqual(request.tokens, [30, 31, 32, 60, 34, 35] if refused
                                 else [30, 40, 0, 32, 60, 34, 35])
                self.assertEqual(request.forced, [] if refused else request.tokens[:-1])

    def test_drafts_that_stay_keep_what_was_likely_when_they_are_computed_again(self):
        """In chunks, after the request lost its pages."""
        path = self.folder / "x.h5"
        with lockstep.Writer(path, QWEN3) as writer:
            for position, tokens, chosen in ((0, [8, 9], [30]), (2, [30, 31], [31, 32]),
                                             (0, [8, 9], []), (2, [30, 31, 32], [33])):
                writer.begin_pass(tokens, range(position, position + len(tokens)),
                                  logit_rows=range(len(tokens) - len(chosen), len(tokens)),
                                  decode=[at >= 2 for at in range(position,
                                                                  position + len(tokens))])
                writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
                if chosen:
                    logits = np.zeros((len(chosen), 4096), "f4")
                    logits[range(len(chosen)), chosen] = 1
                    writer.show("logits", None, logits)
                    writer.show("token", None, np.int32(chosen))
        with lockstep.Trace(path) as trace:
            self.assertEqual([(r.tokens, r.argmax) for r in trace.requests],
                             [([30, 31, 32, 33], [30, 31, 32, 33])])

    def test_what_was_likely_is_named_of_all_its_choices_or_of_none(self):
        """Nobody showed the logits of one of them; the next is not put in its place."""
        for without in range(3):
            path = self.folder / f"{without}.h5"
            with lockstep.Writer(path, QWEN3) as writer:
                for number, (position, tokens) in enumerate(((0, [8, 9]), (2, [30]), (3, [31]))):
                    writer.begin_pass(tokens, range(position, position + len(tokens)))
                    writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
                    writer.show("token", None, np.int32([30 + number]))
                    if number != without:
                        writer.show("logits", None, np.eye(1, 4096, 30 + number, dtype="f4"))
            with lockstep.Trace(path) as trace:
                self.assertEqual([(r.prompt, r.tokens, r.argmax) for r in trace.requests],
                                 [([8, 9], [30, 31, 32], [])])

    def test_drafts_that_the_end_refuses_are_known_where_decode_is_said(self):
        path = self.folder / "x.h5"
        with lockstep.Writer(path, QWEN3) as writer:
            for position, tokens, chosen in (0, [8, 9], [30]), (2, [30, 40, 50], [31, 0, 0]):
                writer.begin_pass(tokens, range(position, position + len(tokens)),
                                  logit_rows=range(position and len(tokens)) or [1],
                                  decode=[position > 0] * len(tokens))
                writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
                writer.show("token", None, np.int32(chosen))
        with lockstep.Trace(path) as trace:
            self.assertEqual([(r.tokens, r.forced) for r in trace.requests], [([30, 31], [])])

    def test_a_second_answer_to_a_prompt_has_its_own_tokens(self):
        path = self.folder / "x.h5"
        with lockstep.Writer(path, QWEN3) as writer:
            for position, tokens, chosen in (
                    (0, [8, 9], [30]), (2, [30], [31]), (3, [31], [32]), (4, [32], [33]),
                    (1, [9], [30]), (2, [30, 40], [31, 0]), (3, [31, 50], [32, 0])):
                decode = None if position == 0 else [position > 1] * len(tokens)
                writer.begin_pass(tokens, range(position, position + len(tokens)), decode=decode,
                                  logit_rows=range(position and len(tokens)) or [1])
                writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
                writer.show("token", None, np.int32(chosen))
        with lockstep.Trace(path) as trace:
            self.assertEqual([(r.prompt, r.tokens, r.forced) for r in trace.requests],
                             [([8, 9], [30, 31, 32], [])])

    def test_a_prompt_stays_whole(self):
        """Where the trace ends as it is computed again, and where a turn behind it is its last."""
        for last, first in (([8, 9, 10], 0), ([30, 50, 60, 70], 4)):
            path = self.folder / f"{first}.h5"
            with lockstep.Writer(path, QWEN3) as writer:
                for position, tokens, chosen in ((0, [8, 9, 10, 11], [30]), (first, last, None)):
                    chosen = chosen or list(range(1, len(tokens) + 1))
                    writer.begin_pass(tokens, range(position, position + len(tokens)),
                                      logit_rows=range(len(tokens))[-len(chosen):],
                                      decode=[False] * len(tokens))
                    writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
                    writer.show("token", None, np.int32(chosen))
            with lockstep.Trace(path) as trace:
                self.assertEqual([(r.prompt, r.tokens[:-1]) for r in trace.requests],
                                 [([8, 9, 10, 11] + last * (first > 0), [])])

    def test_a_text_that_was_given_at_the_end_stays(self):
        """It counts as forced, and who did not force it is told."""
        path = self.folder / "x.h5"
        with self.assertWarnsRegex(UserWarning, "x.h5: request 0 was fed tokens that it did not "
                                   "choose"), lockstep.Writer(path, QWEN3) as writer:
            for position, tokens, chosen in (0, [8, 9], [30]), (2, [40, 50], [31, 32]):
                writer.begin_pass(tokens, range(position, position + len(tokens)),
                                  logit_rows=range(position and len(tokens)) or [1])
                writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
                writer.show("token", None, np.int32(chosen))
        with lockstep.Trace(path) as trace:
            self.assertEqual([(r.tokens, r.forced) for r in trace.requests],
                             [([40, 50, 32], [40, 50])])

    def test_a_prompt_whose_rows_all_choose_is_none_of_drafts(self):
        """A call of transformers without a cache computes all again, and gives logits to all."""
        path = self.folder / "x.h5"
        with lockstep.Writer(path, QWEN3) as writer:
            for tokens, chosen in ([8, 9, 10], [1, 2, 30]), ([8, 9, 10, 30], [1, 2, 30, 31]):
                writer.begin_pass(tokens, range(len(tokens)), logit_rows=range(len(tokens)))
                writer.show("embed", None, np.zeros((len(tokens), 192), "f4"))
                writer.show("token", None, np.int32(chosen))
            writer.begin_pass([11, 12], [4, 5], logit_rows=[0, 1])
            writer.show("embed", None, np.zeros((2, 192), "f4"))
            writer.show("token", None, np.int32([3, 4]))
        with lockstep.Trace(path) as trace:
            self.assertEqual([(r.prompt, r.tokens) for r in trace.requests],
                             [([8, 9, 10, 30, 11, 12], [4])])

    def test_one_of_whose_first_tokens_nobody_told_is_named_without_lists(self):
        """What was fed since would stand at positions that are not its own."""
        path = self.folder / "x.h5"
        with lockstep.Writer(path, QWEN3) as writer:
            writer.begin_pass([8, 9, 21], [3, 4, 0], [0, 0, 1])
            writer.show("embed", None, np.zeros((3, 192), "f4"))
            writer.show("token", None, np.int32([7, 30]))
        with lockstep.Trace(path) as trace:
            self.assertEqual([(r.id, r.prompt, r.tokens) for r in trace.requests],
                             [(0, [], []), (1, [21], [30])])


class Refused(InFolder):
    """What a Writer is not to be told; nothing is left under the trace's name."""

    def writer(self):
        return lockstep.Writer(self.folder / "x.h5", QWEN3)

    def test_bad_passes_and_tensors(self):
        writer = self.writer()
        self.addCleanup(writer.abandon)
        self.refused("before begin_pass", writer.show, "embed", None, np.zeros((2, 192), "f4"))
        self.refused("as many tokens", writer.begin_pass, [1, 2], [0], [0])
        self.refused("position", writer.begin_pass, [1], [-1])
        self.refused("logit_rows", writer.begin_pass, [1], [0], logit_rows=[3])
        writer.begin_pass([1, 2], [0, 1])
        x = np.zeros((2, 192), np.float32)
        self.refused("mlp.up is the nearest", writer.show, "mlp.upp", 0, x)
        self.refused("no mlp.up in layer 6", writer.show, "mlp.up", 6, x)
        self.refused("no mlp.router in layer 0", writer.show, "mlp.router", 0, x)
        self.refused("not of a layer", writer.show, "embed", 0, x)
        self.refused("[token, hidden] of 2 rows", writer.show, "attn.o", 0, x[:1])
        self.refused("[token, head, dim]", writer.show, "attn.q", 0, x)
        self.refused("integers were wanted", writer.show, "token", None, np.float32([1]))
        self.refused("show_cache", writer.show, "attn.kv", 0, x)
        writer.show("attn.norm", 0, x)
        self.refused("shown twice", writer.show, "attn.norm", 0, x)
        self.refused("is no point", lockstep.Writer, self.folder / "y.h5", QWEN3,
                     schema={"attn": "hf"})
        self.refused("is no folder", lockstep.Writer, self.folder / "no" / "y.h5", QWEN3)
        self.refused("config.json", lockstep.Writer, self.folder / "y.h5", self.folder)
        self.refused("model_type", lockstep.Writer, self.folder / "y.h5", {"model_type": "gpt2"})

    def test_what_is_there_already_is_left_as_it_is(self):
        for name, part in (("x.h5", "x.h5 exists already: remove it or choose another place"),
                           ("x.h5.part", "x.h5.part is left of a run that did not end")):
            path = self.folder / name
            path.write_bytes(b"hours of work")
            self.refused(part, self.writer)
            self.assertEqual(path.read_bytes(), b"hours of work")
            path.unlink()
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_an_exception_leaves_nothing(self):
        with self.assertRaises(KeyError), self.writer() as writer:
            writer.begin_pass([1], [0])
            raise KeyError
        self.refused("no pass", self.writer().close)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_trace_that_has_ended_takes_nothing_more(self):
        x = np.ones((1, 192), np.float32)
        with self.writer() as writer:
            writer.begin_pass([1], [0])
            writer.show("embed", None, x)
            writer.close()
        before = (self.folder / "x.h5").read_bytes()
        for function, *arguments in ((writer.close,), (writer.begin_pass, [1], [0]),
                                     (writer.show, "final.norm", None, x)):
            self.refused("x.h5 is closed and takes nothing more", function, *arguments)
        writer.abandon()
        self.assertEqual((self.folder / "x.h5").read_bytes(), before)
        (self.folder / "x.h5").unlink()
        given_up = self.writer()
        given_up.abandon()
        self.refused("x.h5 was given up and takes nothing more", given_up.close)
        with self.writer() as another:
            given_up.abandon()
            another.begin_pass([1], [0])
            another.show("embed", None, x)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["x.h5"])

    def test_a_buffer_may_be_used_again(self):
        x = np.ones((1, 192), np.float32)
        with self.writer() as writer:
            writer.begin_pass([1], [0])
            writer.show("embed", None, x)
            x[:] = 7
        with lockstep.Trace(self.folder / "x.h5") as trace:
            self.assertEqual(trace["embed"].max(), 1)


if __name__ == "__main__":
    support.main()
