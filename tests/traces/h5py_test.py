"""A trace opens in h5py: 16-bit floats are floats, columns are columns, attributes are texts.

python h5py_test.py WRITE_TRACE, the program that writes the trace which is read here.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np

VALUES = [1.5, -0.0, 3.0e38, 1.0e-40, np.inf, -np.inf, np.nan, 0.3]


def bf16(value):
    """An fp32 rounded to the nearest bf16, by way of its bits."""
    bits = int(np.float32(value).view(np.uint32))
    if np.isnan(value):
        return np.float32(np.nan)
    return np.uint32((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


class Trace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name) / "x.h5"
        subprocess.run([WRITE_TRACE, cls.path], check=True)
        cls.file = h5py.File(cls.path)

    @classmethod
    def tearDownClass(cls):
        cls.file.close()
        cls.folder.cleanup()

    def column(self, name):
        data = self.file[name]
        return list(data.asstr()[()] if data.dtype.kind == "O" else data[()])

    def test_root_says_what_it_is(self):
        attributes = self.file.attrs
        self.assertEqual(attributes["format"], "lockstep")
        self.assertEqual(attributes["format_version"], "2.2")
        self.assertEqual(attributes["complete"], 1)
        self.assertEqual(attributes["default"], "summary")
        self.assertEqual(attributes["NX_class"], "NXroot")
        self.assertEqual(attributes["level"], "full")
        self.assertEqual(attributes["run_id"], "0123456789abcdef")
        self.assertEqual((attributes["rank"], attributes["world_size"]), (0, 1))
        self.assertEqual(self.file["provenance"].attrs["model"], "bard")
        self.assertEqual(json.loads(self.file["provenance"].attrs["schema_json"]), {})

    def test_bf16_reads_as_fp32(self):
        tensor = self.file["tensors/pass000000/model/embed"]
        self.assertEqual(tensor.dtype, np.float32)
        self.assertEqual(tensor.id.get_type().get_size(), 2)
        want = np.array([bf16(v) for v in VALUES], np.float32)
        np.testing.assert_array_equal(tensor[()].ravel(), want)
        np.testing.assert_array_equal(np.signbit(tensor[()].ravel()[:6]), np.signbit(want[:6]))
        self.assertEqual(tensor.attrs["dtype"], "bf16")
        self.assertEqual(tensor.attrs["axes"], "token, hidden")
        self.assertEqual(tensor.attrs["seq"], 0)

    def test_fp16_is_numpys(self):
        tensor = self.file["tensors/pass000000/layer000/attn.q"]
        self.assertEqual(tensor.dtype, np.float16)
        with np.errstate(over="ignore"):
            want = np.array(VALUES, np.float32).astype(np.float16)
        np.testing.assert_array_equal(tensor[()].ravel(), want)

    def test_tensors_lie_bare_in_the_file(self):
        tensor = self.file["tensors/pass000000/model/logits"]
        self.assertIsNone(tensor.chunks)
        offset = tensor.id.get_offset()
        raw = self.path.read_bytes()
        # HDF5 counts from the superblock, behind the block of the seal.
        found = [np.frombuffer(raw[at:at + 16], "<f4").tolist() for at in (offset, offset + 512)]
        self.assertIn([0.5, 4.0, -1.0, 2.5], found)

    def test_index_is_in_execution_order(self):
        self.assertEqual(self.column("index/point"), ["embed", "attn.q", "logits", "token"])
        self.assertEqual(self.column("index/layer"), [-1, 0, -1, -1])
        self.assertEqual(self.column("index/seq"), [0, 1, 2, 3])
        self.assertEqual(self.column("index/dtype"), ["bf16", "fp16", "fp32", "int32"])
        self.assertEqual(self.column("index/n"), [8, 8, 4, 1])
        self.assertEqual(self.column("index/nan")[:2], [1, 1])
        self.assertEqual(self.column("index/posinf")[:2], [1, 2])
        self.assertEqual(self.column("index/zeros")[0], 1)
        self.assertEqual(self.column("index/subnormal")[0], 1)
        self.assertEqual(self.column("index/absmax")[2], 4.0)
        self.assertEqual(self.column("index/mean")[2], 1.5)
        self.assertEqual(self.column("index/parts/shape"), [2, 4, 2, 4, 1, 4, 1])
        self.assertEqual(self.column("index/parts/shape_edges"), [0, 2, 4, 6, 7])
        for path in self.column("index/path"):
            self.assertIsInstance(self.file[path], h5py.Dataset)
        self.assertEqual(self.file["index/mean"].dims[0].keys(), ["seq"])

    def test_passes_and_requests_are_columns(self):
        self.assertEqual(self.column("passes/position"), [0, 1])
        self.assertEqual(self.column("passes/token"), [5, 6])
        self.assertEqual(self.column("passes/slot"), [32, 33])
        self.assertEqual(self.column("passes/phase"), [0, 0])
        self.assertEqual(self.column("passes/pages"), [2])
        self.assertEqual(self.column("requests/name"), ["first"])
        self.assertEqual(self.column("requests/prompt"), [5, 6])
        self.assertEqual(self.column("requests/prompt_edges"), [0, 2])

    def test_logits_keep_the_best(self):
        self.assertEqual(self.file["logits/ids"][()].tolist(), [[1, 3, 0, 2]])
        self.assertEqual(self.file["logits/values"][()].tolist(), [[4.0, 2.5, 0.5, -1.0]])
        self.assertEqual(self.column("logits/chosen"), [1])
        self.assertEqual(self.column("logits/margin"), [1.5])

    def test_summary_is_a_cube_with_scales(self):
        rms = self.file["summary/rms"]
        points = self.column("summary/point")
        self.assertEqual(rms.shape, (1, 2, len(points)))
        self.assertEqual([rms.dims[i].keys() for i in range(3)], [["pass"], ["layer"], ["point"]])
        self.assertEqual(self.column("summary/layer"), [-1, 0])
        logits = rms[0, 0, points.index("logits")]
        self.assertAlmostEqual(logits, np.sqrt(np.mean(np.square([0.5, 4.0, -1.0, 2.5]))))
        self.assertTrue(np.isnan(rms[0, 1, points.index("logits")]))
        self.assertEqual(self.file["summary/nonfinite"][0, 0, points.index("embed")], 3)
        self.assertEqual(self.file["summary"].attrs["NX_class"], "NXdata")
        self.assertEqual(self.file["summary"].attrs["signal"], "rms")
        self.assertEqual(list(self.file["summary"].attrs["axes"]), ["pass", "layer", "point"])


if __name__ == "__main__":
    WRITE_TRACE = sys.argv.pop()
    unittest.main()
