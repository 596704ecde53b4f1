"""What `lockstep-import` is asked in error is refused in a sentence, and nothing is lost by it.

python import_refused_test.py LOCKSTEP
"""
import contextlib
import io
import os
import shutil

import numpy as np

import support
from support import InFolder

from lockstep import command

TINY = support.DATA / "tiny/qwen3-default"


class Asked(InFolder):
    """A dump of one tensor beside a copy of the checkpoint."""

    def setUp(self):
        super().setUp()
        self.dump, self.model = self.folder / "dump", self.folder / "model"
        self.dump.mkdir()
        shutil.copytree(TINY, self.model)
        np.savez(self.dump / "d.npz", tokens=np.arange(3), embed=np.ones((3, 64), "f4"))

    def imported(self, source, out, *options):
        """The exit status, and what was said on stderr."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            status = command.main([str(source), str(out), "--map", "points", "--model",
                                   str(self.model), *options])
        return status, said.getvalue()

    def refused_as(self, part, source, out):
        status, said = self.imported(source, out)
        self.assertEqual(status, 2, said)
        self.assertRegex(said, r"^error: [^\n]*\n$")
        self.assertIn(part, said)

    def files(self):
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


class Places(Asked):
    def test_the_trace_takes_the_place_of_nothing(self):
        other, link = self.folder / "other.h5", self.folder / "link.npz"
        other.write_bytes(b"of another run")
        os.symlink(self.dump / "d.npz", link)
        before = self.files()
        for source, out, part in (
                (self.dump / "d.npz", self.dump / "d.npz", "is of the dump that is imported"),
                (self.dump / "d.npz", self.dump / "../dump/d.npz", "is of the dump"),
                (self.dump / "d.npz", link, "is of the dump"),
                (self.dump, self.dump / "d.npz", "is of the dump"),
                (self.dump, self.model / "model.safetensors", "lies in the checkpoint"),
                (self.dump, self.model / "config.json", "lies in the checkpoint"),
                (self.dump, self.model / "new.h5", "lies in the checkpoint"),
                (self.dump, other, "other.h5 exists already: remove it or choose another place")):
            with self.subTest(out=out):
                self.refused_as(part, source, out)
                self.assertEqual(self.files(), before)
        self.assertTrue(link.is_symlink())

    def test_a_new_file_beside_the_dump_is_its_trace(self):
        status, said = self.imported(self.dump, self.dump / "x.h5", "--dtype", "fp32")
        self.assertEqual((status, said), (0, ""))
        self.assertTrue((self.dump / "x.h5").is_file())


if __name__ == "__main__":
    support.main()
