"""What the inspector's rules share: the files of the house, and how a rule is run.

A rule is a function of the project's root that yields one sentence per trouble. Each file runs
alone: `python3 tests/house/layers.py ROOT`; exit 0: kept, 1: broken.
"""
import hashlib
import os
import pathlib
import re
import subprocess
import sys

ROOMS = ("kernels", "probes", "traces", "src", "reference", "tools", "tests")
CODE = {".h", ".cc", ".cu", ".cuh"}


def files(root, suffixes=None):
    """Paths below the rooms, relative to the root, as strings; test data is not looked at."""
    for room in ROOMS:
        for folder, names, found in os.walk(root / room):
            names[:] = sorted(n for n in names if n not in {"data", "__pycache__"})
            for name in sorted(found):
                if suffixes is None or pathlib.Path(name).suffix in suffixes:
                    yield os.path.relpath(os.path.join(folder, name), root)


def without_comments_and_strings(text):
    """C++ text with comments, strings and characters blanked out and every line break kept."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
        re.S,
    )
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def made_of(root, path, seen):
    """The texts of a file and of the headers of ours that it includes, each once."""
    if path in seen or not (root / path).is_file():
        return
    seen.add(path)
    text = (root / path).read_text()
    yield text
    for header in re.findall(r'^#include "([^"]+)"', text, re.M):
        yield from made_of(root, header, seen)


def remembered(root, paths, build, how, check):
    """The trouble that a check of some files finds, when it costs seconds to ask.

    What passed is remembered in BUILD/house by everything that it was made of, `how` included.
    """
    seen = set()
    texts = [*paths, how, *(text for path in paths for text in made_of(root, path, seen))]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    passed = pathlib.Path(build) / "house" / digest
    if passed.exists():
        return None
    if trouble := check():
        return trouble
    passed.parent.mkdir(parents=True, exist_ok=True)
    passed.touch()
    return None


def said_by(command, text=""):
    """What a compiler-like command says when it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if not done.returncode:
        return None
    return f"{done.stdout}{done.stderr}".strip() or "failed and said nothing"


def run(rule):
    """The main of a rule: prints what it found and exits."""
    found = list(rule(pathlib.Path(sys.argv[1]).resolve(), *sys.argv[2:]))
    print("\n".join(found) or "kept")
    sys.exit(1 if found else 0)
