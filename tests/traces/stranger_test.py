"""A journal read as traces/README.md lists it, with struct and nothing of Lockstep's, and held to
what h5py reads in the segment beside it: stranger_test.py WRITE_TRACE."""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np
import xxhash


def records(data):
    """Kind and body of each record, as long as their checksums are right."""
    assert data[:16] == b"lockstep journal" and struct.unpack_from("<II", data, 16) == (1, 0)
    at, before = 24, 0
    while at < len(data):
        checksum, size, kind = struct.unpack_from("<QII", data, at)
        rest = data[at + 8:at + 16 + size]
        assert xxhash.xxh3_64_intdigest(struct.pack("<Q", before) + rest) == checksum, at
        yield kind, rest[8:]
        at, before = at + 16 + size, checksum


def tensor(body, pass_rows, logit_rows):
    (xxh3, layer, flags, rows_are, point, dtype, axes, width, bins, runs, same,
     hashes) = struct.unpack_from("<QiBBBBBBHIII", body)
    at = 32

    def take(form, count=1):
        nonlocal at
        values = struct.unpack_from(f"<{count}{form}", body, at)
        at += struct.calcsize(f"<{count}{form}")
        return values
    found = {"xxh3": xxh3, "layer": layer}
    found["point"] = bytes(take("B", point)).decode()
    found["dtype"] = bytes(take("B", dtype)).decode()
    found["shape"] = take("q", axes)
    named = [take("i", 3) for _ in range(runs)]
    found["rows"] = [(request, first + i) for request, first, count in named for i in range(count)]
    found["rows"] = (found["rows"], pass_rows, logit_rows)[rows_are]
    if flags & 1:
        found.update(zip(("min", "max", "absmax", "mean", "m2", "sum_abs", "sum_squares"),
                         take("d", 7)))
        found["absmax_at"], = take("q")
        found.update(zip(("nan", "posinf", "neginf", "zeros", "subnormal"),
                         take("q", 5) if flags & 2 else (0,) * 5))
    occupied = take("B", bins)
    found["exponents"] = dict(zip(occupied, take({1: "B", 2: "H", 4: "I"}[width], bins)))
    found["same"], found["row_xxh3"] = same, take("Q", hashes)
    assert at == len(body)
    return found


class Stranger(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.trace = pathlib.Path(folder.name, "x.trace")
        subprocess.run([sys.argv[1], cls.trace], check=True)
        cls.records = list(records((cls.trace / "run.journal").read_bytes()))

    def test_begins_and_ends_with_the_manifest(self):
        self.assertEqual([kind for kind, _ in self.records], [1, 2, 3, 3, 3, 3, 1])
        first, last = (json.loads(self.records[i][1]) for i in (0, -1))
        self.assertEqual((first["complete"], last["complete"], last["passes"]), (False, True, 1))
        self.assertEqual(last["requests"][0]["tokens"], [7])

    def test_a_pass_has_its_rows_pages_and_logits(self):
        body = self.records[1][1]
        number, flags, tensors, rows, logits, tables, inherited, tops, best = struct.unpack_from(
            "<iIIIIIIII", body)
        self.assertEqual((number, flags, tensors, rows, logits, tables, inherited, tops, best),
                         (0, 7, 4, 2, 1, 1, 0, 1, 4))
        self.assertEqual([struct.unpack_from("<iiiiq", body, 36 + 24 * i) for i in range(2)],
                         [(0, 0, 5, 0, 32), (0, 1, 6, 0, 33)])
        at = 36 + 48
        self.assertEqual(struct.unpack_from("<i", body, at), (1,))
        self.assertEqual(struct.unpack_from("<iIi", body, at + 4), (0, 1, 2))
        self.assertEqual(struct.unpack_from("<iii4i4d", body, at + 16),
                         (0, 1, 1, 1, 3, 0, 2, 4.0, 2.5, 0.5, -1.0))
        self.assertEqual(len(body), at + 16 + 12 + 16 + 32)

    def test_tensors_are_those_of_the_index(self):
        found = [tensor(body, [(0, 0), (0, 1)], [(0, 1)]) for kind, body in self.records
                 if kind == 3]
        with h5py.File(self.trace / "seg-000000.h5") as file:
            index, parts = file["index"], file["index/parts"]
            for name in ("point", "dtype"):
                self.assertEqual([one[name] for one in found], index[name].asstr()[()].tolist())
            for name in ("layer", "xxh3", "min", "max", "absmax", "mean", "m2", "sum_abs",
                         "sum_squares", "absmax_at", "nan", "posinf", "neginf", "zeros",
                         "subnormal"):
                np.testing.assert_array_equal([one[name] for one in found], index[name][()], name)
            for name, flat in (("shape", "shape"), ("row_xxh3", "row_xxh3")):
                self.assertEqual([number for one in found for number in one[name]],
                                 parts[flat][()].tolist())
            self.assertEqual([item for one in found for item in one["exponents"].items()],
                             list(zip(parts["exponent"][()].tolist(),
                                      parts["exponent_count"][()].tolist())))
        self.assertEqual([one["rows"] for one in found],
                         [[(0, 0), (0, 1)]] * 2 + [[(0, 1)]] * 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
