"""The package as a wheel, installed into a virtual environment that has nothing else.

python package_test.py LOCKSTEP. Nothing is fetched: numpy, h5py and xxhash are those of the
interpreter that runs this.
"""
import importlib.util
import pathlib
import subprocess
import sys
import unittest
import zipfile

import h5py

import support
from support import QWEN3, InFolder

SCRIPT = f"""
import pathlib, sys
import lockstep
assert pathlib.Path(lockstep.__file__).is_relative_to(sys.prefix), lockstep.__file__
with lockstep.Writer("x.h5", {QWEN3!r}) as writer:
    import numpy
    writer.begin_pass([5], [0])
    writer.show("embed", None, numpy.ones((1, 192), numpy.float32))
print(lockstep.Trace("x.h5"))
print(lockstep.judge("x.h5", {QWEN3!r}).verdict)
assert "torch" not in sys.modules
"""


def run(*words, cwd=None):
    made = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True,
                          check=False)
    if made.returncode:
        raise AssertionError(f"{words} ended with {made.returncode}: {made.stdout}{made.stderr}")
    return made.stdout


@unittest.skipUnless(importlib.util.find_spec("wheel"), "wheel is not installed")
class Package(InFolder):
    def test_a_wheel_serves_in_an_empty_environment(self):
        copy = self.folder / "source"  # building leaves files behind
        run("cp", "-r", support.PACKAGE, copy)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        run(*pip, "wheel", copy, "--no-build-isolation", "--no-deps", "-w", self.folder)
        wheel = next(self.folder.glob("lockstep-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        want = {str(path.relative_to(support.PACKAGE))
                for path in (support.PACKAGE / "lockstep").rglob("*")
                if path.suffix in (".py", ".json", ".typed")}
        self.assertEqual(want, {name for name in names if name.startswith("lockstep/")})
        empty = self.folder / "empty"
        run(sys.executable, "-m", "venv", "--without-pip", empty)
        run(*pip, "--python", empty / "bin/python", "install", "--no-deps", "--no-index", wheel)
        packages = next(empty.glob("lib/*/site-packages"))
        others = pathlib.Path(h5py.__file__).parents[1]
        (packages / "others.pth").write_text(f"{others}\n")
        said = run(empty / "bin/python", "-c", SCRIPT, cwd=self.folder).splitlines()
        self.assertEqual(said[1:], ["diverged"])  # no embedding is all ones
        self.assertRegex(said[0], "1 passes, 1 tensors, 1 requests, fp32")
        self.assertIn("sglang", run(empty / "bin/lockstep-import", "--help"))


if __name__ == "__main__":
    support.main()
