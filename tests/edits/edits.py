"""Edits of saved traces: `python edits.py NAME BASE FROM.h5 TO.h5`, or `--list`.

A trace is read into objects, edited, and written anew, with every hash, digest, statistic and seal
true to what it then holds, unless the edit is that one of them is not. So what is asked of a judge
is its verdict, and not whether it checks sums. Edits are registered by the modules imported here;
BASE is the kind of trace that an edit is of (bases.py).
"""
from __future__ import annotations

import sys
from pathlib import Path

import right  # noqa: F401
import schemas  # noqa: F401
import wrong_ops  # noqa: F401
import wrong_papers  # noqa: F401
import wrong_passes  # noqa: F401
import wrong_tokens  # noqa: F401
import wrong_values  # noqa: F401
from registry import EDITS, Edit, Place


def find(name: str, base: str) -> Edit:
    return next(edit for edit in EDITS if (edit.name, edit.base) == (name, base))


def apply(name: str, base: str, source: Path, target: Path) -> Place | None:
    """Writes the edited trace; where the first finding is expected, None: not said."""
    return find(name, base).write(source, target)


def main(arguments: list[str]) -> None:
    if arguments == ["--list"]:
        for edit in EDITS:
            wanted = {0: "clean", 1: "diverged", 2: "doubt", None: "any"}[edit.expect]
            print(f"{edit.base:10} {edit.name:44} {wanted:9} {edit.why}")
        return
    name, base, source, target = arguments
    print(apply(name, base, Path(source), Path(target)) or "no place is expected")


if __name__ == "__main__":
    main(sys.argv[1:])
