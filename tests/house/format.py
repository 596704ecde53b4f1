"""The code is as .clang-format wants it: format.py ROOT CLANG_FORMAT."""
import subprocess

import house


def problems(root, formatter):
    for path in house.files(root, house.CODE | {".c"}):
        ran = subprocess.run([formatter, "--dry-run", "-Werror", root / path],
                             capture_output=True, text=True, check=False)
        if ran.returncode:
            yield f"{path} is not formatted: run clang-format -i on it\n{ran.stderr[:300]}"


if __name__ == "__main__":
    house.run(problems)
