"""Two files of statistics, JSON lines {tag, shape, mean, sum, head_values}, held to each other.

That is what many engines print of a tensor while they are debugged: its first values and its sum.
Lines are paired by tag, those of one tag by their order. Nothing of it makes a run right: numbers
that nobody wrote down are not compared, and the report says how many these are.
"""
from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import LockstepError, Parser, check, tell

TOLERANCE = 0.02  # of a tensor's scale: what 16-bit runs differ by after some layers
SHOWN = 12        # how many lines of one kind a report has


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What one line says of a tensor."""

    line: int  # its number in the file
    tag: str
    shape: tuple[int, ...]
    mean: float
    sum: float
    head: NDArray[np.float64]  # its first values, row-major

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape without axes of one entry, which engines have or have not."""
        return tuple(extent for extent in self.shape if extent != 1)


def read_statistics(path: str | os.PathLike[str]) -> dict[str, list[Statistics]]:
    """By tag, its lines in order. Raises LockstepError, with the number of the line, for others."""
    found: dict[str, list[Statistics]] = {}
    try:
        lines = pathlib.Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LockstepError(f"{path} cannot be read ({error}): JSON lines of statistics were "
                            "wanted") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            one = _parsed(line, number, f"{path}:{number}")
            found.setdefault(one.tag, []).append(one)
    check(found, f"{path} has no line: JSON lines of statistics were wanted")
    return found


def _parsed(line: str, number: int, where: str) -> Statistics:
    try:
        entry = json.loads(line)
        one = Statistics(number, entry["tag"], tuple(map(int, entry["shape"])),
                         float(entry["mean"]), float(entry["sum"]),
                         np.array(entry["head_values"], np.float64))
        fits = isinstance(one.tag, str) and one.head.ndim == 1 and \
            0 < len(one.head) <= one.size and all(extent > 0 for extent in one.shape)
    except (ValueError, KeyError, TypeError) as error:
        raise LockstepError(f"{where} is no line of statistics ({type(error).__name__}: {error}): "
                            "an object with tag, shape, mean, sum and head_values was "
                            "wanted") from error
    check(fits, f"{where} has {len(one.head)} head_values of a tensor {list(one.shape)}: a list of "
          "its first values was wanted, one at least and no more than it has")
    return one


@dataclasses.dataclass
class Compared:
    """Two files against each other, in the order of the first; texts are for people."""

    different: list[str] = dataclasses.field(default_factory=list)  # in the order of the first file
    missing: list[str] = dataclasses.field(default_factory=list)
    duplicate: list[str] = dataclasses.field(default_factory=list)
    sliced: list[str] = dataclasses.field(default_factory=list)
    alike: int = 0     # pairs that were compared and do not differ
    seen: int = 0      # values that were compared, of those pairs
    elements: int = 0  # that those pairs have
    blind: str = ""    # what the widest of those pairs hides

    def __str__(self) -> str:
        lines = [f"first difference: {self.different[0]}"] if self.different else []
        for name in ("different", "missing", "duplicate", "sliced"):
            texts = getattr(self, name)
            lines += [f"{name.upper()}  {text}" for text in texts[:SHOWN]]
            lines += [f"{name.upper()}  ... and {len(texts) - SHOWN} more"] * (len(texts) > SHOWN)
        if self.alike:
            lines += [f"{self.alike} tensors are not seen to differ: {self.seen} of their "
                      f"{self.elements} elements were compared one by one, the others by their sum "
                      "and mean alone",
                      "what that cannot tell: whether elements behind the first are in another "
                      f"order, are wrong with a sum that is kept, {self.blind}"]
        else:
            lines.append("nothing is seen to agree" if self.different else
                         "nothing could be compared")
        return "\n".join(lines)


def compare(a: str | os.PathLike[str], b: str | os.PathLike[str],
            tolerance: float = TOLERANCE) -> Compared:
    """tolerance: what is no difference, of the largest of the first values, and of the root of the
    number of elements times their rms (or of the sum, if that is larger) for a sum."""
    left, right = read_statistics(a), read_statistics(b)
    found, widest, different = Compared(), 0, []
    found.missing = [f"{tag} is in {a} alone" for tag in left if tag not in right]
    found.missing += [f"{tag} is in {b} alone" for tag in right if tag not in left]
    for tag in (tag for tag in left if tag in right):
        counts = len(left[tag]), len(right[tag])
        if max(counts) > 1:
            found.duplicate.append(f"{tag} is there {counts[0]} and {counts[1]} times: paired by "
                                   "their order" + ("" if counts[0] == counts[1] else
                                                    ", which may be of other calls"))
        for call, (one, other) in enumerate(zip(left[tag], right[tag])):
            name = f"{tag}#{call}" if max(counts) > 1 else tag
            if one.extents != other.extents and one.size != other.size:
                found.sliced.append(f"{name} {_slice_text(one, other, tolerance)}")
                continue
            what = _difference(one, other, tolerance)
            if what:
                different.append((one.line, f"{name} {what}"))
                continue
            found.alike += 1
            found.seen += min(len(one.head), len(other.head))
            found.elements += one.size
            if one.size > widest:
                widest = one.size
                limit = _sum_limit(one, other, tolerance)
                found.blind = (f"or one is wrong by less than {limit:.3g} (in {name}, the largest)")
    found.different = [text for _, text in sorted(different)]
    return found


def _heads(one: Statistics, other: Statistics) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    count = min(len(one.head), len(other.head))
    return one.head[:count], other.head[:count]


def _head_difference(one: Statistics, other: Statistics, tolerance: float) -> str:
    """What of the first values differs; "": nothing."""
    x, y = _heads(one, other)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(x - y))
    scale = max((abs(v) for v in (*x, *y) if math.isfinite(v)), default=0.0)
    bad = np.flatnonzero(~(apart <= tolerance * scale))
    if not len(bad):
        return ""
    at = int(bad[0])
    return f"value {at} of the first {len(x)} is {x[at]:.6g} and {y[at]:.6g}"


def _sum_limit(one: Statistics, other: Statistics, tolerance: float) -> float:
    """By how much sums may differ: random errors add up by the root of their number."""
    values = np.concatenate(_heads(one, other))
    values = values[np.isfinite(values)]
    rms = float(np.sqrt(np.mean(values * values))) if len(values) else 0.0
    sums = [abs(s) for s in (one.sum, other.sum) if math.isfinite(s)]
    return tolerance * max([math.sqrt(one.size) * rms, *sums])


def _difference(one: Statistics, other: Statistics, tolerance: float) -> str:
    head = _head_difference(one, other, tolerance)
    limit = _sum_limit(one, other, tolerance)
    apart = any(not (x == y or math.isnan(x) and math.isnan(y) or abs(x - y) <= most)
                for x, y, most in ((one.sum, other.sum, limit),
                                   (one.mean, other.mean, limit / one.size)))
    sums = f"the sum is {one.sum:.6g} and {other.sum:.6g}, the mean {one.mean:.6g} and " \
        f"{other.mean:.6g}"
    if head and not apart:
        return f"{head}, but sum and mean agree: the elements may be in another order"
    return f"{head}; {sums}" if head else f"agrees in its first values, but {sums}" if apart else ""


def _slice_text(one: Statistics, other: Statistics, tolerance: float) -> str:
    x, y = one.extents, other.extents
    part = len(x) == len(y) and (all(p <= q for p, q in zip(x, y)) or
                                 all(p >= q for p, q in zip(x, y))) or one.size == 1
    how = "one may be a slice of the other" if part or len(x) != len(y) else \
        "neither is within the other"
    head = _head_difference(one, other, tolerance)
    return (f"is {list(one.shape)} and {list(other.shape)}: {how}; sums are not compared, and the "
            f"first values {'are others' if head else 'agree'}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: nothing is seen to differ; 1: something does; 2: nothing was compared."""
    parser = Parser(
        prog="python -m lockstep stats", description="Compares two files of JSON lines {tag, "
        "shape, mean, sum, head_values}, and says what they cannot tell.")
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE,
                        help=f"what is no difference, of a tensor's scale ({TOLERANCE})")
    options = parser.parse_args(arguments)
    try:
        found = compare(options.a, options.b, options.tolerance)
    except LockstepError as error:
        return tell(str(error))
    print(found)
    return 1 if found.different else 0 if found.alike else 2
