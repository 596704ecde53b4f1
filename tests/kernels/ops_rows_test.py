"""A table of ops with an entry that the list of all ops lacks does not compile.

python ops_rows_test.py SOURCE CXX FLAG ..., with the flags that say where headers are.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROW = re.compile(r",\n    OpRow\{\"add\".*?\}\}(?=,\n)", re.DOTALL)


class OpsRows(unittest.TestCase):
    def compiled(self, change) -> subprocess.CompletedProcess:
        """kernels/ops.h alone, changed."""
        header = (SOURCE / "kernels/ops.h").read_text()
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "kernels/ops.h"
            copy.parent.mkdir()
            copy.write_text(change(header))
            return subprocess.run(
                [CXX, "-std=c++20", "-fsyntax-only", f"-I{folder}", f"-I{SOURCE}", *FLAGS,
                 "-include", str(copy), "-x", "c++", "/dev/null"],
                capture_output=True, text=True, check=False)

    def test_the_whole_list_compiles(self):
        result = self.compiled(lambda header: header)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_list_without_a_row_does_not(self):
        def without_row(header: str) -> str:
            changed, count = ROW.subn("", header)
            self.assertEqual(count, 1)
            return changed
        result = self.compiled(without_row)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("every entry of Ops needs a row of kOps", result.stderr)


if __name__ == "__main__":
    SOURCE, CXX = pathlib.Path(sys.argv[1]), sys.argv[2]
    FLAGS = [f"-I{folder}" for folder in sys.argv[3:]]
    unittest.main(argv=sys.argv[:1])
