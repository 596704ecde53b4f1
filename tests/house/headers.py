"""Every header compiles alone and has #pragma once.

A header that its own .cc includes before all others is compiled alone by the build.
"""
import concurrent.futures
import re

import house


def is_first_of_its_own_file(root, path):
    own = (root / path).with_suffix(".cc")
    first = own.is_file() and re.search(r'^#include ["<]([^">]+)', own.read_text(), re.M)
    return bool(first) and first.group(1) == path


def trouble_with(root, path, build, compiler):
    if "#pragma once\n" not in (root / path).read_text():
        return f"{path}: has no #pragma once"
    if is_first_of_its_own_file(root, path):
        return None
    command = [compiler, "-std=c++20", "-fsyntax-only", "-I", root, "-x", "c++", "-"]
    said = house.remembered(root, [path], build, f"alone {compiler}",
                            lambda: house.said_by(command, f'#include "{path}"\n'))
    return said and f"{path}: does not compile alone\n{said[:3000]}"


def problems(root, build, compiler="g++"):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        paths = list(house.files(root, {".h"}))
        yield from filter(None, pool.map(lambda p: trouble_with(root, p, build, compiler), paths))


if __name__ == "__main__":
    house.run(problems)
