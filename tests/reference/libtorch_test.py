"""Which LibTorch reference/libtorch.cmake finds, and what it says of one that does not fit.

libtorch_test.py ROOT CMAKE
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT, CMAKE = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
SCRIPT = """
include("%s/reference/libtorch.cmake")
lockstep_find_libtorch()
message(NOTICE "found ${LOCKSTEP_LIBTORCH} ${LOCKSTEP_LIBTORCH_VERSION}")
""" % ROOT


class LibtorchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        (self.folder / "find.cmake").write_text(SCRIPT)
        self.in_venv = self.libtorch("venv/lib/python3.11/site-packages/torch", "2.11.0")

    def libtorch(self, name, version, flags=""):
        package = self.folder / name / "share" / "cmake" / "Torch"
        package.mkdir(parents=True)
        (package / "TorchConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\n')
        (package / "TorchConfig.cmake").write_text(f'set(TORCH_CXX_FLAGS "{flags}")\n')
        (self.folder / name / "lib").mkdir()
        (self.folder / name / "lib" / "libtorch_cpu.so").touch()
        return self.folder / name

    def found(self, *definitions, **environment):
        done = subprocess.run(
            [CMAKE, f"-DLOCKSTEP_VENV={self.folder}/venv", *definitions, "-P",
             self.folder / "find.cmake"],
            capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"], **environment})
        return " ".join(done.stderr.split())

    def test_the_virtual_environment_where_none_is_named(self):
        self.assertEqual(self.found(), f"found {self.in_venv} 2.11.0")

    def test_a_named_one_comes_first(self):
        other = self.libtorch("other", "2.9.1+cpu", "-D_GLIBCXX_USE_CXX11_ABI=1")
        packages = other / "share" / "cmake"
        for definitions, environment in (
                ([f"-DTorch_DIR={packages}/Torch"], {}), ([], {"Torch_DIR": f"{packages}/Torch"}),
                ([f"-DCMAKE_PREFIX_PATH=/nowhere;{other}"], {}),
                ([f"-DCMAKE_PREFIX_PATH={packages}"], {}),
                ([], {"CMAKE_PREFIX_PATH": f"/nowhere:{packages}"}),
                ([f"-DLOCKSTEP_LIBTORCH={other}"], {})):
            found, version = self.found(*definitions, **environment).split()[1:]
            self.assertEqual((pathlib.Path(found).resolve(), version), (other, "2.9.1"))

    def test_none(self):
        self.assertIn("is not there: run tools/setup, or name another one",
                      self.found("-DLOCKSTEP_VENV=/nowhere"))

    def test_one_that_is_too_old_or_of_another_abi(self):
        old = self.libtorch("old", "2.5.1")
        self.assertIn("LibTorch 2.5.1 of", self.found(f"-DLOCKSTEP_LIBTORCH={old}"))
        other = self.libtorch("abi", "2.9.0", "-D_GLIBCXX_USE_CXX11_ABI=0")
        self.assertIn("or later with the C++11 ABI was wanted",
                      self.found(f"-DLOCKSTEP_LIBTORCH={other}"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
