"""tools/setup on machines that lack something, played by programs that only note their calls.

setup_test.py ROOT: what it installs, what it leaves alone, and the sentence that it ends with.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[-1]).resolve()
HAS_GPU = os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")
REAL = ("bash", "cat", "dirname", "env", "grep", "ln", "mkdir", "mktemp", "rm", "sed", "tail")

# $0 notes its call; the variable FAIL lists what is to fail, the variable HAVE the packages.
STUB = """#!{bash}
echo "${{0##*/}} $*" >>"$CALLS"
case "${{0##*/}}" in
  id) echo "$USER_ID" ;;
  dpkg-query) [[ " $HAVE " == *" ${{!#}} "* || "$HAVE" = all ]] && echo "install ok installed" ;;
  python3) case $1 in
    -) [ -n "$PYTHON_TORCH" ] || exit 1; echo "$PYTHON_TORCH" ;;
    -m) mkdir -p build/venv/bin && ln -s "$0" build/venv/bin/pip ;;
  esac ;;
esac
[[ " $FAIL " != *" ${{0##*/}} "* ]]
"""


class Machine:
    """A checkout, and a PATH on which nothing is but bash's helpers and noting programs."""

    def __init__(self, folder, programs=("apt-get", "dpkg-query", "sudo")):
        self.checkout = folder / "checkout"
        self.programs = folder / "bin"
        self.calls = folder / "calls"
        (self.checkout / "tools").mkdir(parents=True)
        self.programs.mkdir()
        shutil.copy(ROOT / "tools" / "setup", self.checkout / "tools" / "setup")
        for name in REAL:
            (self.programs / name).symlink_to(shutil.which(name))
        stub = folder / "stub"
        stub.write_text(STUB.format(bash=shutil.which("bash")))
        stub.chmod(0o755)
        for name in ("cmake", "id", "ninja", "python3", *programs):
            (self.programs / name).symlink_to(stub)

    def setup(self, *arguments, user=0, have="all", fail="", python_torch="", **more):
        """(exit status, what it said, the calls of programs but for questions)."""
        self.calls.write_text("")
        environment = {"PATH": str(self.programs), "CALLS": str(self.calls), "HAVE": have,
                       "USER_ID": str(user), "FAIL": fail, "PYTHON_TORCH": python_torch, **more}
        done = subprocess.run([self.checkout / "tools" / "setup", *arguments], text=True,
                              env=environment, capture_output=True, check=False)
        calls = [line for line in self.calls.read_text().splitlines()
                 if line.split()[0] not in ("id", "dpkg-query")]
        return done.returncode, done.stderr.strip().splitlines(), calls

    def has(self, *packages):
        """Puts packages of Python into build/venv."""
        for package in packages:
            (self.checkout / "build/venv/lib/python3.11/site-packages" / package).mkdir(
                parents=True, exist_ok=True)
        pip = self.checkout / "build/venv/bin/pip"
        pip.parent.mkdir(exist_ok=True)
        if not pip.exists():
            pip.symlink_to(self.programs / "cmake")

    def cache(self, *lines):
        (self.checkout / "build").mkdir(exist_ok=True)
        (self.checkout / "build" / "build.ninja").touch()
        (self.checkout / "build" / "CMakeCache.txt").write_text("\n".join(lines) + "\n")


class SetupTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.machine = Machine(pathlib.Path(self.folder.name))
        self.addCleanup(self.folder.cleanup)

    def test_command_on_a_bare_machine(self):
        status, said, calls = self.machine.setup("--command", have="git")
        self.assertEqual(status, 0, said)
        self.assertTrue(calls[0].startswith("apt-get update"), calls)
        self.assertIn(" g++ cmake ", calls[1])
        self.assertNotIn(" git ", calls[1])
        pip = next(call for call in calls if call.startswith("pip"))
        if not HAS_GPU:
            self.assertIn("--no-deps torch==", pip)
            self.assertIn("nvidia-cuda-cupti==", pip)
        self.assertNotIn("transformers", pip)
        self.assertEqual(calls[-1], "ninja -C build command")

    def test_what_needs_no_torch_is_compiled_while_it_comes(self):
        for arguments, first in ((("--command",), "ninja -C build lockstep_report"),
                                 ((), "ninja -C build")):
            shutil.rmtree(self.machine.checkout / "build", ignore_errors=True)
            calls = self.machine.setup(*arguments)[2]
            programs = [call.split()[0] for call in calls]
            self.assertEqual(programs.count("cmake"), 2, calls)  # without LibTorch, then with it
            self.assertLess(programs.index("cmake"), programs.index("pip"), calls)
            self.assertIn(first, calls[:-1])
            self.assertEqual(programs[-2:], ["cmake", "ninja"], calls)

    def test_what_was_interrupted_is_configured_again(self):
        self.machine.has("torch-2.11.0.dist-info", "nvidia_cuda_cupti-13.dist-info",
                         "nvidia_cudnn_cu13-9.dist-info")
        self.machine.cache(f"CMAKE_HOME_DIRECTORY:INTERNAL={self.machine.checkout}")
        programs = [call.split()[0] for call in self.machine.setup("--command")[2]]
        self.assertEqual(programs, ["cmake", "ninja"])

    def test_a_second_call_only_builds(self):
        self.machine.has("torch-2.11.0.dist-info", "nvidia_cuda_cupti-13.dist-info",
                         "nvidia_cudnn_cu13-9.dist-info")
        self.machine.cache(f"CMAKE_HOME_DIRECTORY:INTERNAL={self.machine.checkout}",
                           "LOCKSTEP_LIBTORCH:PATH=" + str(
                               self.machine.checkout / "build/venv/lib/python3.11/torch"))
        self.assertEqual(self.machine.setup("--command")[2], ["ninja -C build command"])

    def test_tests_need_all_of_torch(self):
        self.machine.has("torch-2.11.0.dist-info", "nvidia_cuda_cupti-13.dist-info")
        calls = self.machine.setup()[2]
        pip = next(call for call in calls if call.startswith("pip"))
        self.assertIn("transformers==", pip)
        self.assertNotIn("--no-deps", pip)
        self.assertEqual(calls[-1], "ninja -C build")

    def test_ci_compiles_files_together_and_developers_each_alone(self):
        together = "-DCMAKE_UNITY_BUILD=ON"
        configured = [call for call in self.machine.setup(CI="true")[2] if call.startswith("cmake")]
        self.assertEqual([together in call for call in configured], [True, True])
        self.assertFalse([call for call in self.machine.setup()[2] if together in call])
        self.machine.cache("CMAKE_UNITY_BUILD:UNINITIALIZED=ON", "BUILD_TESTING:BOOL=OFF")
        for ci, alone in (("", True), ("true", False)):  # in a folder of --command
            calls = self.machine.setup(CI=ci)[2]
            configured = next(call for call in calls if call.startswith("cmake"))
            self.assertIn("-DBUILD_TESTING=ON", configured)
            self.assertEqual("-DCMAKE_UNITY_BUILD=OFF" in configured, alone)

    def test_tests_are_linked_by_a_linker_that_the_command_does_without(self):
        for arguments, wanted in (((), True), (("--command",), False)):
            calls = self.machine.setup(*arguments, have="git")[2]
            self.assertEqual(calls[1].endswith(" mold"), wanted, calls[1])

    def test_the_torch_of_python_is_used(self):
        _, said, calls = self.machine.setup("--command", python_torch="/opt/torch")
        self.assertIn("setup: using the LibTorch of /opt/torch", said)
        self.assertFalse([call for call in calls if call.startswith("pip")], calls)
        self.assertTrue(any("-DLOCKSTEP_LIBTORCH=/opt/torch" in call for call in calls), calls)

    def test_a_named_torch_comes_first(self):
        libtorch = self.machine.checkout / "libtorch"
        (libtorch / "lib").mkdir(parents=True)
        (libtorch / "lib" / "libtorch_cpu.so").touch()
        for arguments, environment in (
                (["-DTorch_DIR=/opt/torch/share/cmake/Torch"], {}),
                (["-DLOCKSTEP_TORCH=OFF"], {}),
                ([f"-DCMAKE_PREFIX_PATH=/nowhere;{libtorch}"], {}),
                ([], {"CMAKE_PREFIX_PATH": f"/nowhere:{libtorch}"}),
                ([], {"Torch_DIR": "/opt/torch/share/cmake/Torch"})):
            status, said, calls = self.machine.setup("--command", *arguments, **environment,
                                                     python_torch="/opt/other")
            self.assertEqual(status, 0, said)
            self.assertFalse([c for c in calls if "pip" in c or "/opt/other" in c], calls)

    def says(self, sentence, *arguments, **how):
        status, said, calls = self.machine.setup(*arguments, **how)
        self.assertEqual(status, 1, said)
        self.assertIn(sentence, said[-1])
        return calls

    def test_neither_root_nor_sudo(self):
        (self.machine.programs / "sudo").unlink()
        self.assertEqual(self.says("neither root nor have sudo: have somebody run `apt-get install",
                                   have="git", user=1000), [])

    def test_no_network(self):
        self.says("apt could not reach its archives, and these packages are missing: g++ cmake",
                  have="git", fail="apt-get")
        self.says("pip could not install these: " + ("" if HAS_GPU else "--no-deps ") + "torch==",
                  "--command", fail="pip")

    def test_no_debian(self):
        for name in ("apt-get", "dpkg-query"):
            (self.machine.programs / name).unlink()
        self.assertEqual(self.says("this is neither Debian nor Ubuntu: install what stands"), [])

    def test_a_build_folder_of_another_checkout(self):
        self.machine.cache("CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere/lockstep")
        self.assertEqual(self.says("build/ was made for another checkout, /elsewhere/lockstep"), [])

    def test_the_build_fails(self):
        self.says("the build failed: call `ninja -C build`", "--command", fail="ninja")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
