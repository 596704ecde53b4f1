"""Tensors of a model that several ranks shared, each as one of them dumped it, made whole again.

As Megatron cuts them, and SGLang, vLLM and TensorRT-LLM after it: heads and the MLP's inner values
are parts that follow each other; a K/V head is in several ranks where they outnumber the heads;
norms and the stream are in every rank, as are sums once they are added up. Where they are not yet,
the ranks' tensors are unlike, and are what each adds.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from lockstep.digest import row_hashes
from lockstep.elements import Elements
from lockstep.errors import check
from lockstep.points import Place

HEADS = frozenset(("attn.q", "attn.q_norm", "attn.q_rope", "attn.out"))
KV_HEADS = frozenset(("attn.k", "attn.k_norm", "attn.k_rope", "attn.v"))
INNER = frozenset(("mlp.gate", "mlp.up", "mlp.act"))
PARTIALS = {"embed": "embed.partial", "attn.o": "attn.o_partial", "mlp.down": "mlp.down_partial"}


@dataclasses.dataclass(frozen=True)
class Unlike:
    """The first row of a place in which a rank has other bits than an earlier one."""

    place: Place
    row: int
    rank: int
    own: int    # hashes of the row
    first: int
    says: str


@dataclasses.dataclass(frozen=True)
class Joined:
    """A whole tensor, or what each rank adds to one; and where ranks were not alike."""

    place: Place
    elements: Elements
    unlike: Unlike | None = None


class Shards:
    """How a model of these sizes is cut for so many ranks."""

    def __init__(self, sizes: Mapping[str, int], ranks: int) -> None:
        self.sizes, self.ranks = dict(sizes), ranks
        heads, kv_heads = sizes["H"], sizes["K"]
        fits = heads % ranks == 0 and sizes["I"] % ranks == 0 and \
            (kv_heads % ranks == 0 or ranks % kv_heads == 0)
        check(fits, f"a model of {heads} heads, {kv_heads} K/V heads and {sizes['I']} inner values "
              f"cannot be shared by {ranks} ranks: are all of these folders of one run?")
        # What a rank has of them: the sizes that its tensors are split by.
        self.local = self.sizes | {"H": heads // ranks, "K": max(1, kv_heads // ranks),
                                   "I": sizes["I"] // ranks}

    def join(self, place: Place, parts: Sequence[Elements]) -> Joined:
        """One tensor of all ranks' tensors of a place, with one axis after that of rows."""
        point = place[1]
        if len({(part.dtype, part.bits.shape) for part in parts}) > 1 or self.ranks == 1:
            return Joined(place, parts[0], self._other_shape(place, parts))
        if point in HEADS or point in INNER:
            return Joined(place, self._beside(parts, "H" if point in HEADS else "I"))
        if point in KV_HEADS:
            return self._kv_heads(place, parts)
        if point == "logits" and parts[0].bits.shape[-1] < self.sizes["V"]:
            wide = np.concatenate([part.bits for part in parts], -1)  # padded to equal parts
            return Joined(place, Elements(wide[..., :self.sizes["V"]], parts[0].dtype))
        unlike = self._unlike(place, [self._rows(part) for part in parts])
        if unlike is None or point not in PARTIALS:
            return Joined(place, parts[0], unlike)
        rows = [part.bits.reshape(-1, self.sizes["h"]) for part in parts]
        return Joined((place[0], PARTIALS[point]), Elements(np.stack(rows, 1), parts[0].dtype))

    def _rows(self, part: Elements) -> Elements:
        wide = part.bits.shape[-1] if part.bits.ndim else 1
        return Elements(part.bits.reshape(-1, wide), part.dtype)

    def _beside(self, parts: Sequence[Elements], letter: str) -> Elements:
        """Parts of a row follow each other."""
        wide = self.local[letter] * (self.sizes["D"] if letter == "H" else 1)
        if parts[0].bits.size % wide:
            return parts[0]  # which is of no shape that is known, as the importer says
        return Elements(np.concatenate([part.bits.reshape(-1, wide) for part in parts], 1),
                        parts[0].dtype)

    def _kv_heads(self, place: Place, parts: Sequence[Elements]) -> Joined:
        count, dim = self.local["K"], self.sizes["D"]
        if parts[0].bits.size % (count * dim):
            return Joined(place, parts[0])
        rows = [part.bits.reshape(-1, count, dim) for part in parts]
        whole = np.empty((len(rows[0]), self.sizes["K"], dim), rows[0].dtype)
        copies, unlike = self.ranks * count // self.sizes["K"], None
        for rank, part in enumerate(rows):
            first = rank // copies * count
            if rank % copies == 0:
                whole[:, first:first + count] = part
                continue
            kept = whole[:, first:first + count]
            found = self._unlike_rows(place, rank, np.ascontiguousarray(kept), part,
                                      f"its copy of head {first} has other bits")
            unlike = unlike or found
        return Joined(place, Elements(whole, parts[0].dtype), unlike)

    def _unlike(self, place: Place, parts: Sequence[Elements]) -> Unlike | None:
        """Of what every rank has, the first rank and row that are not as rank 0's."""
        for rank, part in enumerate(parts[1:], 1):
            found = self._unlike_rows(place, rank, parts[0].bits, part.bits,
                                      "the row has other bits")
            if found:
                return found
        return None

    def _unlike_rows(self, place: Place, rank: int, first: np.ndarray, own: np.ndarray,
                     how: str) -> Unlike | None:
        wanted, found = row_hashes(first), row_hashes(np.ascontiguousarray(own))
        others = np.flatnonzero(wanted != found)
        if not len(others):
            return None
        row = int(others[0])
        return Unlike(place, row, rank, int(found[row]), int(wanted[row]), leaves(rank, place, how))

    def _other_shape(self, place: Place, parts: Sequence[Elements]) -> Unlike | None:
        for rank, part in enumerate(parts):
            if (part.dtype, part.bits.shape) != (parts[0].dtype, parts[0].bits.shape):
                return Unlike(place, 0, rank, 0, 0, leaves(
                    rank, place, f"it has {list(part.bits.shape)} of {part.dtype} where rank 0 has "
                    f"{list(parts[0].bits.shape)} of {parts[0].dtype}"))
        return None


def leaves(rank: int, place: Place, how: str) -> str:
    """The sentence that a judge of ranks says."""
    where = place[1] if place[0] < 0 else f"layer {place[0]} {place[1]}"
    return f"rank {rank} leaves rank 0 at {where}: {how}"
