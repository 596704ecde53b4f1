"""Which points and layers are meant, in the words of the command's --points and --layers."""
from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Collection

from lockstep.errors import LockstepError, check
from lockstep.points import AXES
from lockstep.writer import check_point


def points_of(asked: str | Collection[str]) -> frozenset[str]:
    """By name or pattern, "attn.*,logits" or a list of such; empty: all."""
    found: set[str] = set()
    for name in _parts(asked) if isinstance(asked, str) else asked:
        some = fnmatch.filter(AXES, str(name))
        if not some:
            check_point(str(name))
        found.update(some)
    return frozenset(found)


def layers_of(asked: int | str | Collection[int], count: int) -> frozenset[int]:
    """By number, "0,3-5", a number or a list of such, of a model of so many layers; empty: all."""
    found: set[int] = set()
    for entry in _parts(asked) if isinstance(asked, str) else \
            asked if isinstance(asked, Collection) else [asked]:
        found.update(_range_of(entry, count))
    return frozenset(found)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _range_of(entry: int | str, count: int) -> range:
    """Both ends are of the model before anything counts from one to the other."""
    ends: list[int] = []
    if isinstance(entry, str):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", entry)
        if found:
            ends = [int(found[1]), int(found[2] or found[1])]
    else:
        try:
            ends = [operator.index(entry)] * 2
        except TypeError:
            pass
    if not ends or ends[0] > ends[1]:
        raise LockstepError("layers: numbers and ranges such as 0,3-5 were wanted, found "
                            f"{entry!r}")
    for layer in ends:
        check(0 <= layer < count, f"layers names layer {layer}, but the model's layers are "
              f"0..{count - 1}: name some of those")
    return range(ends[0], ends[1] + 1)
