"""The one exception of this package."""
from __future__ import annotations


class LockstepError(Exception):
    """Trouble, in one sentence: the fact first, then what was wanted and what to do."""


def check(ok: object, sentence: str) -> None:
    """Raises LockstepError with that sentence unless `ok`."""
    if not ok:
        raise LockstepError(sentence)
