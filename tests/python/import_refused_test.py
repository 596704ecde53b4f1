"""What `lockstep-import` is asked in error is refused in a sentence, and nothing is lost by it.

python import_refused_test.py LOCKSTEP
"""
import contextlib
import io
import os
import shutil
import subprocess
import sys

import numpy as np

import support
from support import InFolder

import lockstep
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
                (self.dump, self.folder, "is a folder: name the .h5 file"),
                (self.dump, other, "other.h5 exists already: remove it or choose another place")):
            with self.subTest(out=out):
                self.refused_as(part, source, out)
                self.assertEqual(self.files(), before)
        self.assertTrue(link.is_symlink())

    def test_a_new_file_beside_the_dump_is_its_trace(self):
        status, said = self.imported(self.dump, self.dump / "x.h5", "--dtype", "fp32")
        self.assertEqual((status, said), (0, ""))
        self.assertTrue((self.dump / "x.h5").is_file())


class Files(Asked):
    def test_what_is_no_archive_is_not_said_to_be_a_pickle(self):
        whole = (self.dump / "d.npz").read_bytes()
        array = io.BytesIO()
        np.save(array, np.arange(3))
        for name, content in (("empty", b""), ("text", b"hello world"), ("cut", whole[:-30]),
                              ("head", whole[:7]), ("of one array", array.getvalue())):
            with self.subTest(name):
                path = self.folder / "x.npz"
                path.write_bytes(content)
                self.refused_as("x.npz is no npz that can be read: it is not a whole zip archive",
                                path, self.folder / "x.h5")

    def test_arrays_of_objects_are_not_proposed_to_be_loaded(self):
        (self.folder / "objects").mkdir()
        np.save(self.folder / "objects/embed.npy", np.array([{}], object))
        np.savez(self.folder / "x.npz", embed=np.array([{}], object))
        for name in ("objects", "x.npz"):
            status, said = self.imported(self.folder / name, self.folder / "x.h5", "--tokens", "1")
            self.assertEqual(status, 2)
            self.assertIn("holds objects that are no numbers, or is damaged", said)
            self.assertNotIn("allow_pickle", said)


class Told(Asked):
    def test_a_dump_of_another_dtype_than_the_checkpoint_s_names_the_option(self):
        embed = np.full((3, 64), 1 + 2.0**-20, np.float32)  # no number of bf16
        np.savez(self.dump / "d.npz", tokens=np.arange(3), positions=np.arange(3), embed=embed)
        for dtype, noted in (("bf16", True), ("fp32", False)):
            said = lockstep.import_dump(self.dump, self.folder / f"{dtype}.h5", names="points",
                                        model=self.model, dtype=dtype).notes
            self.assertEqual(said, ["some tensors are fp32 where the run is bf16, the first: embed "
                                    "of layer -1; if the engine computed in fp32, import it with "
                                    "--dtype fp32"] if noted else [])

    def test_help_is_no_error(self):
        for option in ("--help", "-h"):
            made = subprocess.run([sys.executable, "-m", "lockstep", option], env=os.environ | {
                "PYTHONPATH": str(support.PACKAGE)}, capture_output=True, text=True, check=False)
            self.assertEqual((made.returncode, made.stderr), (0, ""))
            for part in ("python -m lockstep import SRC OUT.h5", "stats A B", "bundle CALL.pt OUT"):
                self.assertIn(part, made.stdout)


if __name__ == "__main__":
    support.main()
