"""What `cmake --install` installs serves programs outside the tree, and works where it is moved to.

package_test.py CMAKE BUILD FLAGS: installs BUILD, moves what was installed, builds the program in
consumer/ against it by find_package(Lockstep), and runs that program and the installed command.
FLAGS are the C++ flags of BUILD: a sanitizer's are needed on both sides.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "data" / "bard-qwen3"


def output(*command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{command} ended with {done.returncode}, not {status}:\n" \
                                      f"{done.stdout}{done.stderr}"
    return done.stdout


def installed(cmake, build, folder):
    """The prefix, after it was installed elsewhere."""
    output(cmake, "--install", build, "--prefix", folder / "staged")
    (folder / "staged").rename(folder / "prefix")
    return folder / "prefix"


def check_consumer(cmake, flags, prefix, folder):
    shutil.copytree(HERE / "consumer", folder / "consumer")
    output(cmake, "-S", folder / "consumer", "-B", folder / "built", "-G", "Ninja",
           f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_FLAGS={flags}")
    output(cmake, "--build", folder / "built")
    consumer = folder / "built" / "consumer"
    said = output(consumer, folder / "right.trace", "-1")
    assert "No bug among 1 of 1 nodes" in said, said
    said = output(consumer, folder / "wrong.h5", "7", status=1)
    assert "embed introduces the first error: request 0, position 1" in said, said
    assert "want 7, got 5" in said, said


def check_command(prefix, folder):
    command = prefix / "bin" / "lockstep"
    assert "embed" in output(command, "inspect", folder / "wrong.h5")
    if list(prefix.glob("lib*/**/liblockstep_reference.so")):
        said = output(command, "run", "--model", MODEL, "--tokens", "1,2,3", "--max-new", "1")
        assert "clean: " in said, said


def check_c_interface(flags, prefix, folder):
    """The engine in C, built by pkg-config alone, writes a trace that the command reads."""
    paths = ":".join(map(str, prefix.glob("lib*/**/pkgconfig")))
    flags += subprocess.run(["pkg-config", "--cflags", "--libs", "lockstep_trace"], check=True,
                            env=os.environ | {"PKG_CONFIG_PATH": paths}, capture_output=True,
                            text=True).stdout.split()
    engine = folder / "tiny_qwen3"
    output("cc", HERE.parents[1] / "traces/examples/tiny_qwen3.c", "-o", engine, *flags, "-lm",
           *[f"-Wl,-rpath,{flag[2:]}" for flag in flags if flag.startswith("-L")])
    output(engine, HERE.parent / "data/tiny/qwen3-default", folder / "engine.h5", "5", "6", "7")
    said = output(prefix / "bin" / "lockstep", "inspect", folder / "engine.h5")
    assert "tiny_qwen3" in said and "3 passes" in said, said


def check_files(prefix):
    for name in ("include/lockstep/kernels/lockstep_ops.h",
                 "include/lockstep/traces/lockstep_trace.h", "share/lockstep/**/result.schema.json",
                 "share/lockstep/cpu-limits.json", "share/doc/lockstep/LICENSE",
                 "share/man/man1/lockstep.1", "share/bash-completion/completions/lockstep",
                 "share/zsh/site-functions/_lockstep"):
        assert list(prefix.glob(name)), f"{name} is not installed"


def main():
    cmake, build, flags = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prefix = installed(cmake, build, folder)
        check_files(prefix)
        check_consumer(cmake, flags, prefix, folder)
        check_command(prefix, folder)
        check_c_interface(flags.split(), prefix, folder)


if __name__ == "__main__":
    main()
