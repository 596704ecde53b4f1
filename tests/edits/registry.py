"""What an edit is, and the list of all."""
from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trace_file
from trace_model import DoesNotFit, Trace

CLEAN, DIVERGED, DOUBT = 0, 1, 2  # exit statuses of the judge; DOUBT: inconclusive or trouble


@dataclass(frozen=True)
class Place:
    """Where the first finding is expected; layer -1: not of a layer."""

    number: int  # of the pass
    layer: int
    point: str

    def __str__(self) -> str:
        where = "" if self.layer < 0 else f"layer {self.layer} "
        return f"pass {self.number} {where}{self.point}"


# Edits of wrong_tokens after which a trace still shows the tokens that it showed before: rows are
# gone, or other things are said of how tokens were chosen.
SAME_TOKENS = ("logit*", "a-request-that-is-not-declared", "forced-tokens-gone",
               "forced-tokens-fewer", "sampled-run-said-to-be-greedy")

Change = Callable[[Trace], Place | None]  # edits in place; where the first finding is expected
Write = Callable[[Path, Path], Place | None]  # from a saved trace to another one


@dataclass(frozen=True)
class Edit:
    """One edit of one base trace. `why`: what the judge is to make of it, and for what reason.

    `expect`: the exit status that is thought right; None: any, as long as it is no crash. What
    must not be clean may end with DIVERGED and DOUBT alike: the other one is a remark.
    """

    name: str
    base: str
    expect: int | None
    why: str
    write: Write
    quick: bool

    @property
    def kind(self) -> str:
        """The module that made it."""
        return getattr(self.write, "__module__", "")

    @property
    def other_by_diff(self) -> bool:
        """By its kind; diff pairs rows and looks neither at pages nor at papers."""
        if self.kind == "wrong_tokens":
            return self.expect in (DIVERGED, DOUBT) and \
                not any(fnmatch.fnmatch(self.name, name) for name in SAME_TOKENS)
        return self.kind in ("wrong_values", "wrong_ops") and self.expect == DIVERGED


EDITS: list[Edit] = []
loaded = functools.cache(trace_file.load)


def _saved(change: Change) -> Write:
    @functools.wraps(change)
    def write(source: Path, target: Path) -> Place | None:
        trace = loaded(source).clone()
        place = change(trace)
        trace_file.save(trace, target)
        return place
    return write


def add(name: str, base: str, expect: int | None, why: str, change: Change,
        quick: bool = False) -> None:
    """Registers an edit of a trace's objects."""
    EDITS.append(Edit(name, base, expect, " ".join(why.split()), _saved(change), quick))


def edit(*bases: str, expect: int | None, quick: bool = False) -> Callable[[Change], Change]:
    """Registers a function as an edit of these bases; its name is the edit's, its text the why."""
    def register(change: Change) -> Change:
        for base in bases:
            name = change.__name__.strip("_").replace("_", "-")
            add(name, base, expect, change.__doc__ or "", change, quick and base == bases[0])
        return change
    return register


def edit_files(base: str, expect: int | None) -> Callable[[Write], Write]:
    """Registers a function of two paths, for what is no single file."""
    def register(write: Write) -> Write:
        name = write.__name__.replace("_", "-")
        EDITS.append(Edit(name, base, expect, " ".join((write.__doc__ or "").split()), write,
                          False))
        return write
    return register


def wants(condition: bool, what: str) -> None:
    if not condition:
        raise DoesNotFit(what)
