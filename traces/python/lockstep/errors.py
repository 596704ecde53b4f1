"""The one exception of this package, and what becomes of those of libraries."""
from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import re
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import NoReturn

# What a damaged file has the readers of Python's libraries raise.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, OSError, EOFError, MemoryError,
          RuntimeError, ArithmeticError, AssertionError, struct.error, zlib.error,
          zipfile.BadZipFile, pickle.UnpicklingError, tokenize.TokenError, SyntaxError)


class LockstepError(Exception):
    """Trouble, in one sentence: the fact first, then what was wanted and what to do."""


def check(ok: object, sentence: str) -> None:
    """Raises LockstepError with that sentence unless `ok`."""
    if not ok:
        raise LockstepError(sentence)


def tell(sentence: str) -> int:
    """Says it on stderr, as one line that any terminal shows as it is; returns the exit status."""
    shown = "".join(letter if letter.isprintable()
                    else letter.encode("unicode_escape", "backslashreplace").decode("ascii")
                    for letter in sentence[:1000])
    print(f"error: {shown}", file=sys.stderr)
    return 2


class Parser(argparse.ArgumentParser):
    """Of a command line. What is wrong with one is told as all else is."""

    def error(self, message: str) -> NoReturn:
        sys.exit(tell(f"{self.prog}: {message}; `{self.prog} --help` says what it takes"))


def one_line(error: BaseException) -> str:
    """What a library said, as far as a sentence has room for it."""
    said = " ".join(str(error).split())
    number = re.search(r"\berrno = (\d+)", said)  # as libhdf5 buries the system's word
    if number:
        return os.strerror(int(number[1]))
    if isinstance(error, KeyError):
        return f"it has no {said[:200]}"
    if isinstance(error, IndexError):
        return "a part of it is not there"
    return said[:200] if said else type(error).__name__


@contextlib.contextmanager
def kept_from_stderr() -> Iterator[list[BaseException]]:
    """What would be printed and ignored, since what raised it has no caller, is in the list."""
    lost: list[BaseException] = []
    hooks = sys.unraisablehook, sys.excepthook
    sys.unraisablehook = lambda of: lost.append(of.exc_value or RuntimeError("it is not known why"))
    sys.excepthook = lambda kind, error, trace: lost.append(error)
    try:
        yield lost
    finally:
        sys.unraisablehook, sys.excepthook = hooks


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Has what a library raises on a damaged file say so of `what`, as a LockstepError."""
    try:
        yield
    except DAMAGE as error:
        raise LockstepError(f"{what} cannot be read: it is damaged, or of another kind "
                            f"({one_line(error)})") from error
