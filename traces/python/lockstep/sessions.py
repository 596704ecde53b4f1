"""Which request and position each row of a batch is, from what a model is called with."""
from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.errors import check


@dataclasses.dataclass(eq=False)
class Session:
    """The batch that a cache belongs to. Columns are those of the cache, padding among them."""

    requests: list[int]                 # of each row of the batch
    keep: NDArray[np.bool_]             # [batch, column]: it is a token and no padding
    tokens: NDArray[np.int64]           # [batch, column]
    finished: set[int] = dataclasses.field(default_factory=set)  # rows of the batch that ended

    @property
    def columns(self) -> int:
        return int(self.keep.shape[1])


class Call:
    """One call of the model, which computes columns begin .. of its session.

    Of each row that is recorded, in order: batch, column, request, position, token.
    """

    def __init__(self, session: Session, begin: int, keep: NDArray[np.bool_]) -> None:
        self.session, self.begin = session, begin
        self.keep = keep                # [batch, new column]: its row is recorded
        self._list()

    def leave_out(self, rows: set[int]) -> None:
        """Nothing of these rows of the batch is recorded."""
        if rows:
            self.keep[list(rows)] = False
            self._list()

    def _list(self) -> None:
        batch, new = np.nonzero(self.keep)
        column = new + self.begin
        position = np.cumsum(self.session.keep, axis=1) - 1
        self.batch: list[int] = batch.tolist()
        self.column: list[int] = column.tolist()
        self.request = [self.session.requests[b] for b in self.batch]
        self.position: list[int] = position[batch, column].tolist()
        self.token: list[int] = self.session.tokens[batch, column].tolist()


class Sessions:
    """All batches that were seen; a call is entered before it is computed."""

    def __init__(self) -> None:
        self._by_cache: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()
        self._last: Session | None = None
        self._without_cache: Session | None = None
        self._next = 0

    def enter(self, ids: torch.Tensor, mask: Any, cache: Any, past: int) -> Call:
        """A call with ids [batch, new column]. cache None: nothing is behind it."""
        tokens = ids.detach().cpu().numpy().astype(np.int64)
        batch, new = tokens.shape
        session = self._by_cache.get(cache) if cache is not None else self._again(tokens)
        known = session is not None or past == 0
        if session is None or session.keep.shape[0] != batch or (cache is not None and past == 0):
            session = self._begin(batch, past)
        # A cache that was cropped, or a sequence that is computed from its beginning again.
        session.keep, session.tokens = session.keep[:, :past], session.tokens[:, :past]
        check(session.columns == past, f"the cache holds {past} tokens of which {session.columns} "
              "were computed under capture: begin with an empty cache")
        keep = _kept_columns(mask, batch, past, new)
        if not known and keep.shape[1] == past + new:
            session.keep = keep[:, :past]
        session.keep = np.concatenate([session.keep, keep[:, -new:]], axis=1)
        session.tokens = np.concatenate([session.tokens, tokens], axis=1)
        self._last = session
        if cache is not None:
            self._by_cache[cache] = session
        return Call(session, past, keep[:, -new:].copy())

    def leave(self, cache: Any) -> None:
        """The call returned this cache; one that the model made itself is known only now."""
        if self._last is None:
            return
        if cache is not None:
            self._by_cache[cache] = self._last
        else:
            self._without_cache = self._last

    def _begin(self, batch: int, past: int) -> Session:
        first, self._next = self._next, self._next + batch
        return Session(list(range(first, self._next)), np.ones((batch, past), bool),
                       np.full((batch, past), -1, np.int64))

    def _again(self, tokens: NDArray[np.int64]) -> Session | None:
        """Without a cache: the batch of the call before, if these tokens go on with its own."""
        before = self._without_cache
        if before is None or before.tokens.shape[0] != tokens.shape[0] \
                or before.columns > tokens.shape[1]:
            return None
        return before if np.array_equal(before.tokens, tokens[:, :before.columns]) else None


def _kept_columns(mask: Any, batch: int, past: int, new: int) -> NDArray[np.bool_]:
    """Which columns are tokens, [batch, past + new], by the attention mask of the call."""
    total = past + new
    if isinstance(mask, dict):  # by kind of layer, as generate makes it for a static cache
        check("full_attention" in mask, "the attention masks of the call are of sliding layers "
              "alone, and do not tell padding from what a window hides: use a dynamic cache")
        mask = mask["full_attention"]  # None: there is no padding
    if mask is None:
        return np.ones((batch, total), bool)
    if mask.dim() == 4:  # the last row sees every token; [batch, 1, row, column]
        last = mask[:, 0, -1]
        mask = last if last.dtype == torch.bool else last >= 0
    check(mask.dim() == 2 and mask.shape[0] in (1, batch) and mask.shape[1] >= new,
          f"an attention mask of the shape {list(mask.shape)} is not understood: [batch, columns] "
          "was wanted")
    kept = mask.detach().cpu().numpy().astype(bool)
    kept = np.broadcast_to(kept, (batch, kept.shape[1]))
    return kept[:, :total] if kept.shape[1] >= total else kept
