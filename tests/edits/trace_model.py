"""A saved trace in memory: plain objects that an edit changes, and what keeps them consistent.

Arrays are never changed in place: whoever edits gives a tensor new bits (`put_bits`), which makes
its digest anew. So a clone may share them.
"""
from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
from qwen_graph import Node, qwen_graph  # noqa: E402, F401
from tensors import Digest, bits_of, digest_of, digest_of_rows, row_hashes_of, values_of, xxh3

if TYPE_CHECKING:
    import h5py

TOP_LOGITS = 8
PREFILL, DECODE = 0, 1
Label = tuple[int, int]  # request, position


@dataclass
class Row:
    """One token that a pass computes."""

    request: int
    position: int
    token: int
    slot: int
    phase: int

    @property
    def label(self) -> Label:
        return self.request, self.position


@dataclass
class Tensor:
    """One tensor of a pass; without bits, only its digest was kept."""

    point: str
    layer: int
    dtype: str
    axes: str
    shape: tuple[int, ...]
    rows: list[Label]
    digest: Digest
    row_xxh3: list[int]
    bits: np.ndarray | None

    @property
    def is_cache(self) -> bool:
        return self.point == "attn.kv"

    def values(self) -> np.ndarray:
        assert self.bits is not None
        return values_of(self.bits, self.dtype)

    def put(self, values: np.ndarray) -> None:
        self.put_bits(bits_of(values, self.dtype))

    def put_bits(self, bits: np.ndarray) -> None:
        self.bits = np.ascontiguousarray(bits)
        self.shape = self.bits.shape
        self.row_xxh3 = row_hashes_of(self.bits)
        if self.is_cache:
            self.put_hashes(self.row_xxh3)
        else:
            self.digest = digest_of(self.bits, self.dtype)

    def put_hashes(self, row_xxh3: Sequence[int]) -> None:
        """Of a cache, whose digest is of its rows' hashes."""
        self.row_xxh3 = list(row_xxh3)
        self.shape = (len(self.row_xxh3), *self.shape[1:])
        self.digest = digest_of_rows(self.row_xxh3, int(np.prod(self.shape)))

    def take(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        self.rows = [self.rows[i] for i in rows]
        if self.bits is not None:
            self.put_bits(self.bits[list(rows)])
        elif self.is_cache:
            self.put_hashes([self.row_xxh3[i] for i in rows])
        else:
            raise ValueError("rows of a tensor that was not kept cannot be taken")


@dataclass
class Best:
    """The most likely tokens of one row of logits, and the one that was chosen."""

    request: int
    position: int
    chosen: int
    margin: float
    ids: list[int]
    values: list[float]


@dataclass
class Pass:
    number: int
    rows: list[Row]
    logit_rows: list[int]
    pages: list[tuple[int, list[int]]]
    inherited: list[tuple[int, list[int]]]
    tensors: list[Tensor]
    best: list[Best]

    def find(self, point: str, layer: int, request: int | None = None) -> Tensor:
        for tensor in self.tensors:
            if (tensor.point, tensor.layer) == (point, layer) and (
                    request is None or tensor.rows[0][0] == request):
                return tensor
        raise DoesNotFit(f"pass {self.number} has no {point} of layer {layer}")

    def requests(self) -> list[int]:
        return list(dict.fromkeys(row.request for row in self.rows))

    def refresh_best(self) -> None:
        """Makes /logits anew of the tensors logits and token, as a recorder does."""
        logits, chosen = self.find("logits", -1), self.find("token", -1)
        assert chosen.bits is not None
        self.best = []
        for label, values, token in zip(logits.rows, logits.values(), chosen.bits, strict=True):
            order = np.lexsort((np.arange(values.size), -values))[:TOP_LOGITS]
            top = values[order].tolist()
            self.best.append(Best(*label, int(token), top[0] - top[1], order.tolist(), top))


@dataclass
class Request:
    id: int
    name: str
    sampled: int
    prompt: list[int]
    forced: list[int]
    tokens: list[int]
    argmax: list[int]


class DoesNotFit(Exception):
    """The base trace lacks what an edit changes."""


@dataclass
class Trace:
    """One HDF5 file of passes. `after` are changes to the written file, before it is sealed."""

    attributes: dict[str, object]
    graph: list[Node]
    provenance: dict[str, str]
    requests: list[Request]
    passes: list[Pass]
    inherited_known: bool = True
    first_seq: int = 0
    after: list[Callable[[h5py.File], None]] = field(default_factory=list)
    columns: dict[str, object] = field(default_factory=dict)  # how h5py is to store columns

    @property
    def layers(self) -> int:
        return 1 + max((node.layer for node in self.graph), default=-1)

    def request(self, number: int) -> Request:
        return next(one for one in self.requests if one.id == number)

    def clone(self) -> Trace:
        """A copy whose arrays alone are shared."""
        twin = copy.copy(self)
        twin.graph = copy.deepcopy(self.graph)
        twin.attributes, twin.provenance = dict(self.attributes), dict(self.provenance)
        twin.requests = copy.deepcopy(self.requests)
        twin.passes = [clone_pass(one) for one in self.passes]
        twin.after, twin.columns = list(self.after), dict(self.columns)
        return twin

    def spread_cache(self, first: int, layer: int, labels: set[Label] | None = None) -> None:
        """What attn.k_rope and attn.v of a layer are from pass `first` on, later reads have too.

        `labels`: of these rows alone.
        """
        written: dict[Label, int] = {}
        for one in self.passes[first:]:
            k, v = one.find("attn.k_rope", layer), one.find("attn.v", layer)
            assert k.bits is not None and v.bits is not None
            for i, label in enumerate(k.rows):
                if labels is None or label in labels:
                    written[label] = xxh3(k.bits[i].tobytes() + v.bits[i].tobytes())
            for cache in one.tensors:
                if cache.is_cache and cache.layer == layer:
                    cache.put_hashes([written.get(label, old) for label, old in
                                      zip(cache.rows, cache.row_xxh3, strict=True)])


def clone_pass(one: Pass) -> Pass:
    twin = copy.copy(one)
    twin.rows = [copy.copy(row) for row in one.rows]
    twin.logit_rows = list(one.logit_rows)
    twin.pages = [(request, list(pages)) for request, pages in one.pages]
    twin.inherited = [(request, list(tokens)) for request, tokens in one.inherited]
    twin.tensors = [clone_tensor(tensor) for tensor in one.tensors]
    twin.best = copy.deepcopy(one.best)
    return twin


def clone_tensor(tensor: Tensor) -> Tensor:
    twin = copy.copy(tensor)
    twin.digest = copy.copy(tensor.digest)
    twin.rows, twin.row_xxh3 = list(tensor.rows), list(tensor.row_xxh3)
    return twin
