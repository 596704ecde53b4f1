"""Every header compiles alone and has #pragma once."""
import concurrent.futures

import house


def trouble_with(root, path, build, compiler):
    if "#pragma once\n" not in (root / path).read_text():
        return f"{path}: has no #pragma once"
    command = [compiler, "-std=c++20", "-fsyntax-only", "-I", root, "-x", "c++", "-"]
    said = house.checked(root, path, build, f"alone {compiler}", command, f'#include "{path}"\n')
    return said and f"{path}: does not compile alone\n{said}"


def problems(root, build, compiler="g++"):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        paths = list(house.files(root, {".h"}))
        yield from filter(None, pool.map(lambda p: trouble_with(root, p, build, compiler), paths))


if __name__ == "__main__":
    house.run(problems)
