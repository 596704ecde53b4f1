"""What CMake makes of compilers: configure_test.py ROOT.

Warnings are errors in CI alone, and each compiler is given the flags that it knows.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
LEAST_CLANG = 16


def clangs():
    """Paths of clang++ by version, of all on this machine."""
    found = {}
    for folder in os.environ["PATH"].split(os.pathsep):
        for path in pathlib.Path(folder).glob("clang++*"):
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            if version := re.search(r"clang version (\d+)", said.stdout):
                found[int(version[1])] = str(path)
    return found


class Configure(unittest.TestCase):
    def configure(self, compiler, **environment):
        """What CMake printed, and the compiler's commands; None where it refused."""
        build = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, build)
        kept = {name: text for name, text in os.environ.items() if name != "CI"}
        ran = subprocess.run(
            ["cmake", "-S", ROOT, "-B", build, f"-DCMAKE_CXX_COMPILER={compiler}",
             "-DLOCKSTEP_TORCH=OFF", "-DLOCKSTEP_CUDA=OFF", "-DBUILD_TESTING=OFF"],
            env=kept | environment, capture_output=True, text=True, check=False)
        said = ran.stdout + ran.stderr
        if ran.returncode != 0:
            return " ".join(said.split()), None
        return said, json.loads((build / "compile_commands.json").read_text())

    def test_warnings_are_errors_in_ci_alone(self):
        for environment, errors in (({}, False), ({"CI": "true"}, True)):
            said, commands = self.configure("g++", **environment)
            self.assertIsNotNone(commands, said)
            self.assertGreater(len(commands), 100)
            for entry in commands:
                self.assertEqual("-Werror" in shlex.split(entry["command"]), errors, entry)

    def test_an_old_clang_is_refused_with_what_is_wanted(self):
        old = [path for version, path in clangs().items() if version < LEAST_CLANG]
        if not old:
            self.skipTest(f"there is no clang older than {LEAST_CLANG} on this machine")
        said, commands = self.configure(old[0])
        self.assertIsNone(commands)
        self.assertIn("g++ 12 or clang 16, or later, were wanted", said)

    def test_clang_is_given_no_flag_that_it_does_not_know(self):
        new = [path for version, path in sorted(clangs().items()) if version >= LEAST_CLANG]
        if not new:
            self.skipTest(f"there is no clang of {LEAST_CLANG} or later on this machine")
        said, commands = self.configure(new[-1], CI="true")
        if commands is None and "OpenMP" in said:
            self.skipTest(f"{new[-1]} has no libomp-dev on this machine")
        self.assertIsNotNone(commands, said)
        entry = next(one for one in commands if one["file"].endswith("/src/stats/moments.cc"))
        words = shlex.split(entry["command"])
        words = [word for word in words if not word.endswith("ccache")] + ["-fsyntax-only"]
        ran = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True,
                             check=False)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
