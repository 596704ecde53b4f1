"""K and V as attention reads them: hashed a position, each once, and kept where they are wrong."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.digest import row_hashes, xxh3
from lockstep.elements import Elements, from_torch


@dataclasses.dataclass
class LayerCache:
    """What attention read last of a layer: the bits, and the hash of each position."""

    keys: Tensor                  # integers [batch, kv head, column, dim]
    values: Tensor
    hashes: NDArray[np.uint64]    # [batch, column], of K, then V

    @property
    def columns(self) -> int:
        return int(self.hashes.shape[1])

    def is_prefix_of(self, keys: Tensor, values: Tensor) -> bool:
        """Whether these are the same positions with the same bits, and perhaps more behind them."""
        end = self.columns
        return end <= keys.shape[2] and torch.equal(keys.narrow(2, 0, end), self.keys) and \
            torch.equal(values.narrow(2, 0, end), self.values)


def bits_of(tensor: Tensor) -> Tensor:
    """The same memory as integers, which compare as bits: 0 is not -0, and NaN is itself."""
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def joined(keys: Tensor, values: Tensor) -> Elements:
    """[batch, kv head, column, dim] of one row of the batch as [column, 2, kv head, dim]."""
    return from_torch(torch.stack((keys, values)).permute(2, 0, 1, 3))


def _hashes_of(keys: Tensor, values: Tensor, begin: int) -> NDArray[np.uint64]:
    """Of [batch, kv head, column, dim], the hash of K, then V, of each position from `begin` on."""
    batch, heads, columns, dim = keys.shape
    rows = np.stack([half.narrow(2, begin, columns - begin).cpu().numpy().swapaxes(1, 2)
                     for half in (keys, values)], 2)
    marks = row_hashes(np.ascontiguousarray(rows).reshape(-1, 2, heads, dim))
    return np.array(marks, np.uint64).reshape(batch, columns - begin)


class CacheHashes:
    """Hashes of what attention reads. Where the bits are as they were, a step of decode hashes one
    position, however long the cache is.
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[Any, int], LayerCache] = {}
        self._written: dict[tuple[int, int], NDArray[np.uint64]] = {}  # by layer and request

    def write(self, layer: int, requests: Sequence[int], positions: Sequence[int],
              keys: Elements, values: Elements) -> None:
        """What a pass computed for the cache; row i is of that request and position."""
        marks = row_hashes(np.stack((keys.bits, values.bits), axis=1)) if len(keys.bits) > 1 else \
            [xxh3(keys.bits.tobytes() + values.bits.tobytes())]
        for request, position, mark in zip(requests, positions, marks):
            room = self._written.get((layer, request))
            if room is None or len(room) <= position:
                grown = np.zeros(2 * position + 64, np.uint64)
                grown[:0 if room is None else len(room)] = 0 if room is None else room
                room = self._written[layer, request] = grown
            room[position] = mark

    def read(self, session: Any, layer: int, keys: Tensor, values: Tensor) -> NDArray[np.uint64]:
        """The hash of each position that a pass reads: [batch, column]. They are kept: nobody may
        change them any more."""
        k, v = bits_of(keys), bits_of(values)
        before = self._layers.get((session, layer))
        if before is not None and before.is_prefix_of(k, v):
            hashes = np.concatenate([before.hashes, _hashes_of(k, v, before.columns)], axis=1)
        else:
            hashes = _hashes_of(k, v, 0)
        self._layers[session, layer] = LayerCache(k, v, hashes)
        return hashes

    def written(self, layer: int, request: int, count: int) -> NDArray[np.uint64]:
        """The hash of what passes wrote last for the first `count` positions."""
        return self._written.get((layer, request), np.zeros(0, np.uint64))[:count].copy()
