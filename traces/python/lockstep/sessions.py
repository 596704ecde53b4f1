"""Which request and position each row of a batch is, from what a model is called with."""
from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.errors import check


# Of a call, by the names of its arguments: the request and the position of each of its tokens, both
# [batch, column]; a request below 0: padding.
RequestPositions = Callable[[Mapping[str, Any]], tuple[Any, Any]]
Ids = NDArray[np.int64]


@dataclasses.dataclass(eq=False)
class Session:
    """The batch that a cache belongs to. Columns are those of the cache, padding among them."""

    requests: list[int]     # of each row of the batch, unless its columns are of several
    owner: Ids              # [batch, column]: the request; -1: padding
    position: Ids           # [batch, column]: within the request
    tokens: Ids             # [batch, column]
    finished: set[int] = dataclasses.field(default_factory=set)  # rows of the batch that ended

    @property
    def columns(self) -> int:
        return int(self.owner.shape[1])

    def cut(self, columns: int) -> None:
        """Forgets what comes after so many columns."""
        self.owner, self.position = self.owner[:, :columns], self.position[:, :columns]
        self.tokens = self.tokens[:, :columns]

    def take(self, keep: NDArray[np.bool_]) -> tuple[Ids, Ids]:
        """Request and position of the next columns, of which these are tokens and no padding."""
        before = (self.owner >= 0).sum(axis=1, keepdims=True)
        return np.where(keep, np.array(self.requests)[:, None], -1), \
            before + np.cumsum(keep, axis=1) - 1

    def append(self, owner: Ids, position: Ids, tokens: Ids) -> None:
        self.owner = np.concatenate([self.owner, owner], axis=1)
        self.position = np.concatenate([self.position, position], axis=1)
        self.tokens = np.concatenate([self.tokens, tokens], axis=1)


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
        self.batch: list[int] = batch.tolist()
        self.column: list[int] = column.tolist()
        self.request: list[int] = self.session.owner[batch, column].tolist()
        self.position: list[int] = self.session.position[batch, column].tolist()
        self.token: list[int] = self.session.tokens[batch, column].tolist()


class Sessions:
    """All batches that were seen; a call is entered before it is computed."""

    def __init__(self) -> None:
        self._by_cache: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()
        self._last: Session | None = None
        self._without_cache: Session | None = None
        self._next = 0

    def enter(self, ids: torch.Tensor, mask: Any, cache: Any, past: int,
              given: tuple[Any, Any] | None = None) -> Call:
        """A call with ids [batch, new column]. cache None: nothing is behind it. given: request
        and position of each token, where somebody else knows them."""
        tokens = ids.detach().cpu().numpy().astype(np.int64)
        batch, new = tokens.shape
        session = self._by_cache.get(cache) if cache is not None else self._again(tokens)
        known = session is not None or past == 0
        if session is None or len(session.owner) != batch or (cache is not None and past == 0):
            session = self._begin(batch, past)
        # A cache that was cropped, or a sequence that is computed from its beginning again.
        session.cut(past)
        check(session.columns == past, f"the cache holds {past} tokens of which {session.columns} "
              "were computed under capture: begin with an empty cache")
        if given is not None:
            owner, position = _given(given, tokens.shape)
        else:
            keep = _kept_columns(mask, batch, past, new)
            if not known and keep.shape[1] == past + new:
                session.cut(0)
                session.append(*session.take(keep[:, :past]), np.full((batch, past), -1, np.int64))
            owner, position = session.take(keep[:, -new:])
        session.append(owner, position, tokens)
        if given is not None:
            _check_order(session, past)
        self._last = session
        if cache is not None:
            self._by_cache[cache] = session
        return Call(session, past, owner >= 0)

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
        session = Session(list(range(first, self._next)), *np.zeros((3, batch, 0), np.int64))
        session.append(*session.take(np.ones((batch, past), bool)),
                       np.full((batch, past), -1, np.int64))
        return session

    def _again(self, tokens: NDArray[np.int64]) -> Session | None:
        """Without a cache: the batch of the call before, if these tokens go on with its own."""
        before = self._without_cache
        if before is None or before.tokens.shape[0] != tokens.shape[0] \
                or before.columns > tokens.shape[1]:
            return None
        return before if np.array_equal(before.tokens, tokens[:, :before.columns]) else None


def _given(given: tuple[Any, Any], shape: tuple[int, ...]) -> tuple[Ids, Ids]:
    """Requests and positions as somebody gave them, of a call of that shape."""
    made = [np.asarray(ids.detach().cpu() if isinstance(ids, torch.Tensor) else ids)
            for ids in given]
    for ids in made:
        check(ids.shape == shape and ids.dtype.kind in "iu", "request_positions gave ids of the "
              f"shape {list(ids.shape)} ({ids.dtype}): the request and the position of each token, "
              f"integers {list(shape)}, were wanted")
    owner, position = (ids.astype(np.int64) for ids in made)
    return np.maximum(owner, -1), position


def _check_order(session: Session, past: int) -> None:
    """A request's columns of a cache hold its positions from the first on: attention reads so."""
    for b, owner in enumerate(session.owner):
        for request in set(owner[past:].tolist()) - {-1}:
            found = session.position[b, owner == request]
            check(np.array_equal(found, np.arange(len(found))), f"request {request} has positions "
                  f"{', '.join(map(str, found[:8]))} in row {b} of the batch: 0, 1, 2 and so on, "
                  "in order, were wanted of all that its cache holds")


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
