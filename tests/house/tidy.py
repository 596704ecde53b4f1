"""clang-tidy finds nothing, by the checks of .clang-tidy.

Exit 77, skipped: this machine has no clang-tidy.
"""
import concurrent.futures
import pathlib
import shutil
import sys

import house

SKIPPED = 77


def trouble_with(root, path, build):
    checks = (root / ".clang-tidy").read_text()
    # Clang's own warnings are about g++'s options as often as about the code: g++ warns itself.
    command = ["clang-tidy", "--quiet", "--extra-arg=-Wno-everything", "-p", build, root / path]
    said = house.checked(root, path, build, checks, command)
    return said and f"{path}:\n{said}"


def problems(root, build):
    known = (pathlib.Path(build) / "compile_commands.json").read_text()
    # Files of rooms that this build leaves out (LibTorch, CUDA) have no command to check them by;
    # tests cost as much as all the rest and have themselves to find their bugs.
    paths = [path for path in house.files(root, {".cc"})
             if f'"{root / path}"' in known and not path.startswith("tests/")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield from filter(None, pool.map(lambda path: trouble_with(root, path, build), paths))


if __name__ == "__main__":
    if not shutil.which("clang-tidy"):
        print("skipped: there is no clang-tidy on this machine")
        sys.exit(SKIPPED)
    house.run(problems)
