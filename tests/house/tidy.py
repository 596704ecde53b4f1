"""clang-tidy finds nothing, by the checks of .clang-tidy.

A file costs seconds, so one that passed is remembered in BUILD/tidy by everything that it was made
of: its text, its own headers' texts, the checks. Exit 77, skipped: this machine has no clang-tidy.
"""
import concurrent.futures
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

import house

SKIPPED = 77


def made_of(root, path, seen):
    """The texts of a file and of the headers of ours that it includes, each once."""
    if path in seen or not (root / path).is_file():
        return
    seen.add(path)
    text = (root / path).read_text()
    yield text
    for header in re.findall(r'^#include "([^"]+)"', text, re.M):
        yield from made_of(root, header, seen)


def trouble_with(root, path, build):
    texts = [(root / ".clang-tidy").read_text(), *made_of(root, path, set())]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    passed = build / "tidy" / digest
    if passed.exists():
        return None
    done = subprocess.run(["clang-tidy", "--quiet", "-p", build, root / path],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{path}:\n{done.stdout.strip()}"
    passed.parent.mkdir(exist_ok=True)
    passed.touch()
    return None


def problems(root, build):
    build = pathlib.Path(build)
    known = (build / "compile_commands.json").read_text()
    # Files of rooms that this build leaves out (LibTorch, CUDA) have no command to check them by.
    paths = [path for path in house.files(root, {".cc"}) if f'"{root / path}"' in known]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield from filter(None, pool.map(lambda path: trouble_with(root, path, build), paths))


if __name__ == "__main__":
    if not shutil.which("clang-tidy"):
        print("skipped: there is no clang-tidy on this machine")
        sys.exit(SKIPPED)
    house.run(problems)
