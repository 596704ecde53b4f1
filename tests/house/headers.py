"""Every header compiles alone and has #pragma once."""
import concurrent.futures
import subprocess

import house


def trouble_with(root, path, compiler):
    if "#pragma once\n" not in (root / path).read_text():
        return f"{path}: has no #pragma once"
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-I", root, "-x", "c++", "-"],
        input=f'#include "{path}"\n', capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{path}: does not compile alone\n{done.stderr.strip()[:2000]}"
    return None


def problems(root, compiler="g++"):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        paths = list(house.files(root, {".h"}))
        yield from filter(None, pool.map(lambda path: trouble_with(root, path, compiler), paths))


if __name__ == "__main__":
    house.run(problems)
