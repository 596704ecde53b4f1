"""The code is as .clang-format wants it: format.py ROOT CLANG_FORMAT."""
import re
import subprocess

import house


def problems(root, formatter):
    paths = list(house.files(root, house.CODE | {".c"}))
    ran = subprocess.run([formatter, "--dry-run", "-Werror", *paths], cwd=root,
                         capture_output=True, text=True, check=False)
    found = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", ran.stderr, re.M)))
    for path in found:
        yield f"{path} is not formatted: run clang-format -i on it"
    if ran.returncode and not found:
        yield f"{formatter} failed: {ran.stderr[:300]}"


if __name__ == "__main__":
    house.run(problems)
