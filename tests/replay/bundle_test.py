"""Calls of attention as arrays of NumPy: bundle_test.py LOCKSTEP RIGHT.so LATE.so."""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings
import zipfile

import numpy as np

LOCKSTEP, RIGHT, LATE = sys.argv[1:4]
WHOLE = "LOCKSTEP_WHOLE" in os.environ
PACKAGE = str(pathlib.Path(__file__).resolve().parents[2] / "traces/python")


def attention(q, keys, values, window=0):
    """Causal, of the last tokens of one request, in fp64."""
    heads, group = q.shape[1], q.shape[1] // keys.shape[1]
    out = np.zeros(q.shape)
    for t, position in enumerate(range(len(keys) - len(q), len(keys))):
        first = max(0, position + 1 - window) if window else 0
        for head in range(heads):
            k, v = (x[first:position + 1, head // group].astype(np.float64)
                    for x in (keys, values))
            scores = k @ q[t, head].astype(np.float64) / np.sqrt(q.shape[2])
            p = np.exp(scores - scores.max())
            out[t, head] = p @ v / p.sum()
    return out


def bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Call:
    """Requests of so many (queries, keys), in blocks that are anywhere in the cache."""

    def __init__(self, requests=((5, 5), (1, 19), (7, 23)), heads=4, kv_heads=2, dim=32, block=8,
                 dtype=np.float16, window=0, seed=3):
        random = np.random.default_rng(seed)
        total = sum(queries for queries, _ in requests)
        blocks = [-(-keys // block) for _, keys in requests]
        order = random.permutation(sum(blocks) + 3)
        self.q = random.standard_normal((total, heads, dim)).astype(dtype)
        shape = (len(order), block, kv_heads, dim)
        k, v = (random.standard_normal(shape).astype(dtype) for _ in range(2))
        self.table = np.full((len(requests), max(blocks)), -1, np.int32)
        self.keys, self.values, outs, slots = [], [], [], []
        used = starts = 0
        for r, (queries, keys) in enumerate(requests):
            pages = order[used:used + blocks[r]]
            used += blocks[r]
            self.table[r, :len(pages)] = pages
            flat = [int(pages[p // block]) * block + p % block for p in range(keys)]
            slots += flat[keys - queries:]
            self.keys.append(k.reshape(-1, kv_heads, dim)[flat])
            self.values.append(v.reshape(-1, kv_heads, dim)[flat])
            outs.append(attention(self.q[starts:starts + queries], self.keys[-1], self.values[-1],
                                  window))
            starts += queries
        starts = np.cumsum([0, *[queries for queries, _ in requests]]).astype(np.int32)
        self.arrays = {"q": self.q, "k": k, "v": v, "cu_seqlens": starts,
                       "block_tables": self.table, "slot_mapping": np.array(slots, np.int64),
                       "out": np.concatenate(outs).astype(dtype)}
        if window:
            self.arrays["window"] = np.array([window], np.int32)
        self.lengths = np.array([keys for _, keys in requests], np.int32)


class Bundle(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return str(pathlib.Path(self.folder.name, name))

    def npz(self, arrays):
        np.savez(self.path("call.npz"), **arrays)
        return self.path("call.npz")

    def replayed(self, path, *more):
        done = subprocess.run([LOCKSTEP, "replay", path, "--format", "json", *more],
                              capture_output=True, text=True, check=False)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(done.returncode, {"clean": 0, "diverged": 1}[result["verdict"]])
        return result["verdict"], {trial["by"]: trial for trial in result["trials"]}

    def trouble(self, path, *more):
        done = subprocess.run([LOCKSTEP, "replay", path, *more], capture_output=True, text=True,
                              check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        return done.stderr

    def test_it_is_right_in_every_form(self):
        for window in (0, 6):
            call = Call(window=window)
            forms = {"slots": call.arrays}
            forms["lengths"] = {**call.arrays, "seqused_k": call.lengths}
            del forms["lengths"]["slot_mapping"]
            flat = {**call.arrays, "k": np.concatenate(call.keys),
                    "v": np.concatenate(call.values),
                    "cu_seqlens_k": np.cumsum([0, *call.lengths]).astype(np.int32)}
            forms["flat"] = {name: flat[name] for name in flat
                             if name not in ("block_tables", "slot_mapping")}
            # In every form with a window, and in one without.
            for name, arrays in list(forms.items())[:None if window or WHOLE else 1]:
                with self.subTest(window=window, form=name):
                    verdict, trials = self.replayed(self.npz(arrays), "--ops", RIGHT)
                    self.assertEqual(verdict, "clean")
                    self.assertEqual(set(trials), {"the bundle", "lockstep", RIGHT})
                    self.assertEqual(trials["lockstep"]["rows"], 13)
                    self.assertEqual(trials["lockstep"]["nodes"]["judged"], 3)

    def changed(self, change, **arrays):
        """What is said of a sound archive whose bytes, or arrays, are others."""
        path = pathlib.Path(self.npz({**Call().arrays, **arrays}))
        path.write_bytes(change(path.read_bytes()))
        said = self.trouble(str(path))
        self.assertIn("call.npz", said)
        self.assertNotIn("n" * 100, said)
        return said

    def test_an_archive_that_was_changed_is_refused(self):
        def at(mark, offset, number):
            return lambda data: (data[:(i := data.find(mark) + offset)] + number +
                                 data[i + len(number):])
        first, zip_entry = b"\x93NUMPY", b"PK\1\2"
        self.assertIn("was changed after", self.changed(at(first, 200, b"\1\2\3")))
        self.assertIn("encrypted", self.changed(at(zip_entry, 8, b"\1\0")))
        self.assertIn("was changed after", self.changed(at(first, 6, b"\x09")))
        path = pathlib.Path(self.npz(Call().arrays))
        with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            archive.writestr("q.npy", archive.read("k.npy"))
        self.assertIn("q is there twice", self.trouble(str(path)))
        for version, shape, said in ((9, "(13, 4, 16)", "version 9"),
                                     (1, f"({1 << 40}, 2, 32)", "does not want"),
                                     (1, f"({1 << 62}, 4, 8)", "which is none"),
                                     (1, "(4, L, 8)", "which is none"),
                                     (1, "(4, 2 2, 8)", "which is none"),
                                     (1, "(4, -2, 8)", "which is none")):
            header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("n" * 60000 + ".npy", first + bytes([version, 0]) +
                                 len(header).to_bytes(2, "little") + header + bytes(64))
            self.assertIn(said, self.changed(lambda data, kept=path.read_bytes(): kept))

    def test_a_long_header_is_refused(self):
        for begin in ("{'descr': '", "{'descr': ", "{'descr': '<f4', 'shape': ("):
            for letter in "x 4":
                header = (begin + letter * 65000).encode()
                with zipfile.ZipFile(self.path("call.npz"), "w") as archive:
                    archive.writestr("q.npy", b"\x93NUMPY\1\0" +
                                     len(header).to_bytes(2, "little") + header)
                self.assertIn("neither type nor shape", self.trouble(self.path("call.npz")))

    def test_arrays_that_contradict_each_other_are_refused(self):
        call = Call()
        slots = call.arrays["slot_mapping"].copy()
        slots[3] = 1 << 40
        self.assertIn("slot_mapping puts query 3",
                      self.trouble(self.npz({**call.arrays, "slot_mapping": slots,
                                             "seqused_k": call.lengths})))
        self.assertIn("window is -5", self.trouble(self.npz(
            {**call.arrays, "window": np.array([-5], np.int64)})))
        flat = {**call.arrays, "k": np.concatenate(call.keys), "v": np.concatenate(call.values),
                "cu_seqlens_k": np.cumsum([0, *call.lengths]).astype(np.int32)}
        for name in ("block_tables", "slot_mapping"):
            del flat[name]
        self.assertIn("not all keys", self.trouble(self.npz(
            {**flat, "seqused_k": call.lengths - 1})))
        verdict, _ = self.replayed(self.npz({**flat, "seqused_k": call.lengths,
                                             "window": np.array([1 << 62], np.int64)}))
        self.assertEqual(verdict, "clean")

    def test_it_may_be_a_folder_or_safetensors(self):
        arrays = Call(dtype=np.float32).arrays
        folder = pathlib.Path(self.path("call"))
        folder.mkdir()
        for name in ("q", "k", "v"):
            arrays[name] = bf16(arrays[name])
        del arrays["out"]
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        verdict, trials = self.replayed(str(folder), "--ops", RIGHT)
        self.assertEqual(verdict, "clean")
        self.assertEqual(set(trials), {"lockstep", RIGHT})
        header, data = {}, b""
        for name, array in arrays.items():
            dtype = {"uint16": "BF16", "int32": "I32", "int64": "I64"}[str(array.dtype)]
            header[name] = {"dtype": dtype, "shape": array.shape,
                            "data_offsets": [len(data), len(data) + array.nbytes]}
            data += array.tobytes()
        text = json.dumps(header).encode()
        path = pathlib.Path(self.path("call.safetensors"))
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        of_file = self.replayed(str(path), "--ops", RIGHT)[1]["lockstep"]
        self.assertEqual(of_file["worst"], trials["lockstep"]["worst"])

    def test_a_result_that_is_not_there_is_not_right(self):
        arrays = Call().arrays
        arrays["output"] = arrays.pop("out") * 2
        said = self.trouble(self.npz({**arrays, "lse": np.zeros(4, np.float32)}))
        self.assertIn("call.npz has no array out (or o)", said)
        self.assertIn("lse, output", said)
        self.assertIn("--ops", said)
        del arrays["output"]
        self.assertNotIn("not read", self.trouble(self.npz(arrays)))
        arrays = {**Call().arrays, "lse": np.zeros(4, np.float32)}
        done = subprocess.run([LOCKSTEP, "replay", self.npz(arrays)], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("arrays that are not read: lse", done.stdout)

    def test_it_may_be_what_torch_saved(self):
        import torch
        arrays = Call().arrays
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()},
                   self.path("call.pt"))
        out = self.path("out.safetensors")
        self.assertEqual(self.bundled(self.path("call.pt"), out), "")
        verdict, trials = self.replayed(out, "--ops", RIGHT)
        self.assertEqual((verdict, len(trials)), ("clean", 3))
        self.assertEqual(trials["lockstep"]["worst"],
                         self.replayed(self.npz(arrays))[1]["lockstep"]["worst"])
        torch.save({"q": torch.zeros(2)}, self.path("lacking.pt"))
        out = self.path("other.safetensors")
        self.assertIn("is no file", self.bundled(self.path("none.pt"), out))
        # In this process, for another one would load torch again.
        sys.path.insert(0, PACKAGE)
        from lockstep import bundle
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(bundle.main([self.path("lacking.pt"), out]), 2)
        self.assertIn("has no k, v", said.getvalue())

    def test_it_takes_the_place_of_nothing(self):
        sys.path.insert(0, PACKAGE)
        import torch
        from lockstep import LockstepError
        from lockstep.bundle import write_bundle
        torch.save({"q": torch.zeros(2)}, self.path("call.pt"))
        weights, folder = self.path("model.safetensors"), self.path("call.safetensors")
        pathlib.Path(weights).write_bytes(b"weights")
        pathlib.Path(folder).mkdir()
        nowhere = self.path("link.safetensors")
        os.symlink(self.path("nothing"), nowhere)
        for out, said in ((weights, "model.safetensors exists already: remove it or choose"),
                          (nowhere, "link.safetensors exists already"),
                          (folder, "call.safetensors is a folder: name the .safetensors file")):
            with self.assertRaisesRegex(LockstepError, said):
                write_bundle(out, {"q": np.zeros(2, np.float32)})
            # Before the call is read, which may be large.
            self.assertIn(said, self.bundled(self.path("none.pt"), out))
        self.assertEqual(pathlib.Path(weights).read_bytes(), b"weights")
        self.assertFalse(os.path.exists(self.path("nothing")))

    def bundled(self, source, out):
        done = subprocess.run([sys.executable, "-m", "lockstep", "bundle", source, out],
                              env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 2 if done.stderr else 0)
        return done.stderr

    def test_who_is_wrong_is_told(self):
        call = Call(requests=((3, 950), (1, 4)))
        verdict, trials = self.replayed(self.npz(call.arrays), "--ops", LATE)
        self.assertEqual(verdict, "diverged")
        self.assertEqual({by: trial["nodes"]["wrong"] for by, trial in trials.items()},
                         {"the bundle": 0, "lockstep": 0, LATE: 1})
        self.assertGreaterEqual(trials[LATE]["worst"]["index"][0], 900)
        call.arrays["out"][1, 2] *= 1.5
        trials = self.replayed(self.npz(call.arrays))[1]
        self.assertEqual(trials["the bundle"]["nodes"]["wrong"], 1)
        self.assertEqual(trials["the bundle"]["worst"]["index"][:2], [948, 2])
        self.assertEqual(trials["lockstep"]["nodes"]["wrong"], 0)

    def test_what_is_none_is_refused(self):
        arrays = Call().arrays
        for change, said in [
                ({"q": None}, "no array q"),
                ({"cu_seqlens": np.array([0, 9, 5, 13], np.int32)}, "should rise from 0 to the 13"),
                ({"v": arrays["v"][:, :, :1]}, "two of one shape"),
                ({"k": arrays["k"][..., :31], "v": arrays["v"][..., :31]}, "one even width"),
                ({"slot_mapping": None}, "how many keys each request has"),
                ({"slot_mapping": arrays["slot_mapping"] + 10 ** 6}, "none of its block_tables"),
                ({"block_tables": arrays["block_tables"][:2]}, "a row for each of 3"),
                ({"block_tables": arrays["block_tables"] + 99, "seqused_k": Call().lengths,
                  "slot_mapping": None}, "no block of the cache's"),
                ({"seqused_k": np.array([2, 19, 23], np.int32)}, "no fewer keys"),
                ({"seqused_k": np.array([5, 19, 25], np.int32), "slot_mapping": None},
                 "for position 24 of request 2"),
                ({"out": arrays["out"][1:]}, "out is fp16"),
                ({"softmax_scale": np.array([0.5], np.float32)}, "scores are scaled by 0.5"),
                ({"softcap": np.array([30], np.float32)}, "a cap of 30"),
                ({"causal": np.array([0], np.int32)}, "it is not causal"),
                ({"alibi_slopes": np.ones(4, np.float32)}, "alibi_slopes"),
                ({"q": arrays["q"].astype(np.float64)}, "fp32, fp16"),
                ({"q": np.asfortranarray(arrays["q"])}, "Fortran")]:
            with self.subTest(said=said):
                made = {**arrays, **change}
                path = self.npz({k: v for k, v in made.items() if v is not None})
                self.assertIn(said, self.trouble(path))
        path = self.npz(arrays)
        self.assertIn("leave out --model", self.trouble(path, "--point", "attn.q"))
        whole = pathlib.Path(path).read_bytes()
        for size in (0, 3, 100, len(whole) // 2, len(whole) - 30):
            pathlib.Path(path).write_bytes(whole[:size])
            self.trouble(path)
        np.savez_compressed(self.path("small.npz"), **arrays)
        self.assertIn("is compressed", self.trouble(self.path("small.npz")))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
