"""Which request each row of a dumped pass is of, from what engines say of their batches."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import check


@dataclasses.dataclass(frozen=True)
class PassIds:
    """What a dump says of a pass. positions None: each row stands behind those of its request."""

    tokens: NDArray[np.int64]                  # of each row
    positions: NDArray[np.int64] | None        # of each row
    lengths: NDArray[np.int64] | None = None   # of each request, this pass included
    requests: NDArray[np.int64] | None = None  # of each request or row: the engine's own ids
    keep: NDArray[np.bool_] | None = None      # of a padded batch: which rows of a tensor are these

    def without_padding(self, mask: NDArray[Any]) -> PassIds:
        """Of [batch, column], with a mask [batch, column so far] that is 0 where padding is: each
        row of the batch is a request."""
        batch = len(mask)
        columns, rest = divmod(len(self.tokens), batch)
        if rest or not 0 < columns <= mask.shape[1]:
            return self
        keep = mask[:, -columns:] != 0
        at = np.cumsum(mask != 0, axis=1)[:, -columns:] - 1 if self.positions is None else \
            np.broadcast_to(self.positions.reshape(-1, columns), keep.shape)
        owner = np.broadcast_to(np.arange(batch)[:, None], keep.shape)
        return PassIds(self.tokens.reshape(keep.shape)[keep], at[keep], None, owner[keep],
                       keep.reshape(-1))


class Requests:
    """Numbers requests from 0 in the order in which they appear."""

    def __init__(self) -> None:
        self._by_own: dict[int, int] = {}     # the engine's id -> ours
        self._lengths: dict[int, int] = {}    # ours -> positions so far
        self._next = 0

    def enter(self, ids: PassIds, logits: int) -> tuple[list[int], list[int]]:
        """Request and position of each row; `logits` is how many rows of these the pass has."""
        rows = len(ids.tokens)
        positions = ids.positions
        if positions is None:  # where no request is named, all rows are one's
            named = np.broadcast_to(self._alone() if ids.requests is None else ids.requests, rows)
            positions, ids = self._in_order(named), dataclasses.replace(ids, requests=named)
        check(len(positions) == rows, f"a pass has {rows} tokens and {len(positions)} positions: "
              "the map names something else")
        owners: list[int] = []
        begins = self._begins(ids, positions, logits)
        used: set[int] = set()
        for i, (begin, end) in enumerate(zip(begins, [*begins[1:], rows])):
            own = None
            if ids.requests is not None and len(ids.requests) in (len(begins), rows):
                own = int(ids.requests[i if len(ids.requests) == len(begins) else begin])
            request = self._request(own, int(positions[begin]), used)
            used.add(request)
            self._lengths[request] = int(positions[end - 1]) + 1
            owners += [request] * (end - begin)
        return owners, [int(at) for at in positions]

    @property
    def several(self) -> bool:
        return self._next > 1

    def _alone(self) -> int:
        """The engine's id of the one request, which is called 0 where passes had none."""
        if not self._by_own and self._lengths:
            self._by_own[0] = 0
        return next(iter(self._by_own), 0)

    def _in_order(self, named: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position of each row: behind those that its request had so far."""
        ends: dict[int, int] = {}
        positions = []
        for own in named.tolist():
            at = ends.get(own, self._lengths.get(self._by_own.get(own, -1), 0))
            positions.append(at)
            ends[own] = at + 1
        return np.array(positions, np.int64)

    def _begins(self, ids: PassIds, positions: NDArray[np.int64], logits: int) -> Sequence[int]:
        """The first row of each request."""
        rows = len(positions)
        own = ids.requests
        if own is not None and len(own) == rows:
            return [0] + [i for i in range(1, rows) if own[i] != own[i - 1]]
        if ids.lengths is not None:
            ends, at = [], 0
            for length in ids.lengths:  # a request ends where its position is its last
                while at < rows and positions[at] != length - 1:
                    at += 1
                at += 1
                ends.append(at)
            if ends and ends[-1] == rows:
                return [0, *ends[:-1]]
        if logits == rows and rows > 1 and positions.min() > 0:
            return list(range(rows))  # decode: each row chooses a token
        return [0] + [i for i in range(1, rows) if positions[i] != positions[i - 1] + 1]

    def _request(self, own: int | None, position: int, used: set[int]) -> int:
        """The request that has this id, or that goes on at this position; else a new one."""
        if own is not None and position > 0 and own in self._by_own:
            return self._by_own[own]
        if own is None and position > 0:
            for request, length in self._lengths.items():
                if length == position and request not in used:
                    return request
        request, self._next = self._next, self._next + 1
        if own is not None:
            self._by_own[own] = request  # engines give ids of ended requests to new ones
        return request
