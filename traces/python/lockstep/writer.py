"""Writes a trace, as traces/README.md lays it out, from any engine."""
from __future__ import annotations

import os
import pathlib
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep import tables
from lockstep.blocks import Block, Layout
from lockstep.digest import row_hashes
from lockstep.elements import Elements, elements_of
from lockstep.errors import LockstepError, check
from lockstep.graph import ConfigLike, Node, graph_of, read_config, with_tables
from lockstep.pending import Entry, Pending
from lockstep.points import (AXES, FLOAT32_POINTS, INTEGER_POINTS, LOGIT_POINTS, MODEL_POINTS,
                             nearest)
from lockstep.rows import PassRows, Phases, Request, Row, Run, last_rows, runs_of

RANKS = {point: axes.count(",") + 1 for point, axes in AXES.items()}
TABLES = {(-1, point) for point in FLOAT32_POINTS & MODEL_POINTS}  # of RoPE's cosines and sines
Hashes = NDArray[np.uint64]
# Of tensors that are kept in memory before they are written.
PENDING_BYTES, PENDING_COUNT = 64 << 20, 1 << 10


class Writer:
    """A trace of one file, a pass at a time.

        with Writer("x.h5", "Qwen3-0.6B", schema={"attn.norm": "hf"}) as writer:
            writer.begin_pass(tokens, positions, requests)
            writer.show("attn.q", 3, q)          # [rows of the pass, heads, head_dim]

    Tensors are torch's or numpy's, of fp32, bf16, fp16 or integers; row i of one belongs to row i
    of the pass, of `logits` and `token` to the i-th row that gets logits. `token` is the largest
    logit's, also where another is drawn: that is fed to the next pass, and `sampled` has the last.
    Nothing is under `path` before the block has ended without an exception; what is there already
    is refused.

    config: config.json of the checkpoint as a mapping, its path or folder, or a transformers
    config. dtype: of the run ("bf16"); else that of the first floating tensor. schema: point ->
    rounding contract. provenance: facts about the run, texts by name. selection: a text for
    people, where the trace is meant to hold less than the model has. digests_only: of tensors
    their statistics and hashes are kept, and no numbers.
    """

    def __init__(self, path: str | os.PathLike[str], config: ConfigLike = None, *, dtype: str = "",
                 schema: Mapping[str, str] | None = None,
                 provenance: Mapping[str, str] | None = None, selection: str = "",
                 graph: Sequence[Node] | None = None, digests_only: bool = False) -> None:
        check(config is not None or graph is not None,
              "a trace needs its model's graph: give the config.json of the checkpoint")
        self.graph = list(graph) if graph is not None else graph_of(read_config(config))
        self.schema, self.provenance = dict(schema or {}), dict(provenance or {})
        for point in self.schema:
            check_point(point)
        self.dtype, self.selection, self._digests_only = dtype, selection, digests_only
        self.requests: list[Request] | None = None  # None: what the passes tell of them
        # Requests whose tokens were drawn and need not be argmax, and which was drawn last.
        self.sampled: dict[int, int] = {}
        self.say: Callable[[str], None] = warnings.warn  # is told what nobody declared
        self._path, self._part = pathlib.Path(path), part_of(path)
        check(self._path.parent.is_dir(), f"{self._path.parent} is no folder: a trace is written "
              "into one that is there")
        check_free(path)
        self._file = tables.Output(self._part)
        self._ended = ""  # how the trace has ended
        self._passes: list[PassRows] = []
        self._pending = Pending()
        self._shown = 0  # counts on with what is shown
        self._runs: list[Run] = []  # of all rows of the pass
        self._phases = Phases()
        self._seen: set[tuple[int, str, int]] = set()  # places of the pass that were shown
        self._layouts: set[Layout] = set()  # that were found to be right
        self._places = {(node.layer, node.point) for node in self.graph}

    def begin_pass(self, tokens: Sequence[int], positions: Sequence[int],
                   requests: Sequence[int] | int = 0, *,
                   logit_rows: Sequence[int] | None = None,
                   decode: Sequence[bool] | None = None,
                   inherited: Mapping[int, Sequence[int]] | None = None) -> None:
        """Begins a forward pass. One entry a row: the id that was fed, its position in its request
        (from 0), and its request. logit_rows: which rows get logits; else the last one of each
        request. decode: which rows are of decode; else those that go on behind a row that got
        logits, by which something was chosen: a row alone of its request, or several that all get
        logits, as drafted tokens do, unless all of its prompt did. A draft that is refused is fed
        no more, and the next pass begins at its position. inherited: by request that enters with a
        cache, the tokens of that.
        """
        self._check_open()
        count = len(tokens)
        owners = [int(requests)] * count if isinstance(requests, int) else \
            [int(request) for request in requests]
        check(count and len(positions) == count and len(owners) == count,
              f"a pass has as many tokens as positions and requests, and one at least: found "
              f"{count}, {len(positions)} and {len(owners)}")
        check(all(0 <= int(at) < 1 << 24 for at in positions),
              "a position of the pass is not in 0 to 2^24 - 1")
        if self._passes:
            self._phases.end(self._passes[-1])
        wanted = last_rows(owners) if logit_rows is None else [int(i) for i in logit_rows]
        check(all(0 <= i < count for i in wanted), f"logit_rows are not all in 0 to {count - 1}")
        later = self._phases.of(owners, positions, wanted) if decode is None else decode
        rows = [Row(owner, int(at), int(token), bool(one)) for owner, at, token, one
                in zip(owners, positions, tokens, later)]
        entering = {int(owner): [int(i) for i in ids] for owner, ids in (inherited or {}).items()}
        self._passes.append(PassRows(rows, wanted, entering, told=decode is not None))
        self._runs = runs_of(rows)
        self._seen.clear()

    def show(self, point: str, layer: int | None, tensor: Any, *, dtype: str = "",
             rows: Sequence[int] | None = None) -> None:
        """Shows what the pass computed at a point; layer None or -1: not of a layer.

        rows: numbers of the rows of the pass that the tensor has, where it has not all. dtype
        "bf16": the array is uint16 bits, or fp32 whose values are bf16.
        """
        layer = -1 if layer is None else layer
        self._check_place(point, layer)
        check(point != "attn.kv", "attn.kv is shown by show_cache, a request at a time")
        run = self._passes[-1]
        of = run.with_logits() if point in LOGIT_POINTS else run.rows
        if rows is not None:
            check(all(0 <= i < len(run.rows) for i in rows), f"rows of {point} are not all in 0 to "
                  f"{len(run.rows) - 1}")
            of = [run.rows[i] for i in rows]
        elements = elements_of(tensor, dtype)
        # Until it is written the engine may put something else into its memory.
        self._show(point, layer, Elements(elements.bits.copy(), elements.dtype), of)

    def show_elements(self, point: str, layer: int, elements: Elements, at: int = -1) -> None:
        """The same of all rows, in memory that nobody changes any more. at: its number."""
        self._check_place(point, layer)
        run = self._passes[-1]
        self._show(point, layer, elements,
                   run.with_logits() if point in LOGIT_POINTS else run.rows, at)

    def numbers(self, count: int) -> int:
        """Numbers for so many tensors, which say in which order they were computed: the first."""
        first = self._shown
        self._shown += count
        return first

    def show_block(self, first: int, layout: Layout, raw: NDArray[np.uint8]) -> None:
        """The same of many tensors of all rows, none of them a cache or of logits: those of the
        layout, whose numbers begin with `first`."""
        self._check_open()
        check(self._passes, "tensors were shown before begin_pass: a tensor is of a pass")
        count = len(self._passes[-1].rows)
        if layout not in self._layouts or layout.rows[0] != count or \
                not self._seen.isdisjoint(layout.seen):
            for place, _, _, _, shape in layout.members:
                self._check_place(place.point, place.layer)
                _check_tensor(place.point, place.layer, shape, place.dtype, count)
            self._layouts.add(layout)
        self._seen |= layout.seen
        self.dtype = self.dtype or next((name for name in layout.dtypes if name != "int32"), "")
        self._pending.put_block(first, Block(len(self._passes) - 1, layout, raw, self._runs,
                                             self._digests_only))

    def row_of(self, point: str, index: int) -> Row:
        """The row of the pass that a tensor's row of that number is of."""
        run = self._passes[-1]
        return (run.with_logits() if point in LOGIT_POINTS else run.rows)[index]

    def logits_of(self, rows: Sequence[int]) -> None:
        """Which rows of the pass get logits, where that is not known before it begins."""
        self._passes[-1].logit_rows = list(rows)

    def show_cache(self, layer: int, request: int, tensor: Any, *, hashes_only: bool = False,
                   dtype: str = "", first: int = 0) -> None:
        """Shows K and V as the attention of a request reads them: [positions, 2, kv heads, dim].

        The first row is of position `first`. hashes_only: 8 bytes a row are kept of it, and the
        judge finds the numbers where attn.k_rope and attn.v wrote them.
        """
        elements = elements_of(tensor, dtype)
        check(elements.bits.ndim == 4 and elements.bits.shape[1] == 2,
              f"attn.kv has the axes {AXES['attn.kv']}, found {list(elements.bits.shape)}")
        self.show_cache_hashes(layer, request, row_hashes(elements.bits), elements.bits.shape[2:],
                               elements.dtype, None if hashes_only else elements, first)

    def show_cache_hashes(self, layer: int, request: int, hashes: Sequence[int] | Hashes,
                          row: Sequence[int], dtype: str, tensor: Elements | None = None,
                          first: int = 0, at: int = -1) -> None:
        """The same for who has made the row hashes: xxh3-64 of the bytes of K, then V, of each
        position; `row` is (kv heads, dim)."""
        self._check_place("attn.kv", layer, request)
        self._keep(Entry(len(self._passes) - 1, layer, "attn.kv", tensor,
                         [(request, first, len(hashes))], np.asarray(hashes, np.uint64),
                         (len(hashes), 2, *row), dtype), at)

    def close(self) -> None:
        """Ends the trace and puts it under its name."""
        self._check_open()
        try:
            check(self._passes, f"{self._path}: no pass was begun: a trace holds one at least")
            self._write_pending()
            requests = self._file.finish(tables.RunFacts(
                self.graph, self._run_dtype(), self.schema, self.provenance, self.selection,
                self._passes, self.requests, self.sampled,
                "digest" if self._digests_only else "full"))
            os.replace(self._part, self._path)
            self._ended = "is closed"
        finally:
            self.abandon()
        forced = [request.id for request in requests if request.forced]
        if forced and self.requests is None:
            self.say(f"{self._path}: request {forced[0]}{' (and others)' * (len(forced) > 1)} was "
                     "fed tokens that it did not choose, which the trace has as forced: where "
                     "nobody drew or gave them they are the engine's mistake, of which no verdict "
                     "tells")

    def abandon(self) -> None:
        """Leaves nothing behind of a trace that was not closed."""
        if self._ended == "was given up":
            return  # another trace may grow there now
        self._file.close()
        if not self._ended:
            self._part.unlink(missing_ok=True)
            self._ended = "was given up"

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        if kind is not None:
            self.abandon()
        elif not self._ended:
            self.close()

    def _check_open(self) -> None:
        if self._ended:
            raise LockstepError(f"the trace {self._path} {self._ended} and takes nothing more: "
                                "make a new Writer for another")

    def _check_place(self, point: str, layer: int, request: int = -1) -> None:
        """Raises LockstepError unless the model has that place and this is its first tensor."""
        self._check_open()
        place = (layer, point, request)
        if self._passes and place[:2] in TABLES and self._places.isdisjoint(TABLES):
            self.graph = with_tables(self.graph)  # not every engine shows them
            self._places |= TABLES
        if self._passes and place not in self._seen and place[:2] in self._places:
            self._seen.add(place)
            return
        check_point(point)
        check(self._passes, f"{point} was shown before begin_pass: a tensor is of a pass")
        check((layer < 0) == (point in MODEL_POINTS), f"{point} is "
              f"{'not of a layer' if layer >= 0 else 'of a layer'}: it was shown of layer {layer}")
        check(place in self._seen, f"the model has no {point} in layer {layer}: its config.json "
              "says otherwise")
        raise LockstepError(f"{point} of layer {layer} was shown twice in pass "
                            f"{len(self._passes) - 1}: a pass has one of each")

    def _show(self, point: str, layer: int, elements: Elements, rows: Sequence[Row],
              at: int = -1) -> None:
        _check_tensor(point, layer, elements.bits.shape, elements.dtype, len(rows))
        whole = self._passes[-1].rows
        runs = self._runs if rows is whole else runs_of(rows)
        self._keep(Entry(len(self._passes) - 1, layer, point, elements, runs), at)

    def _run_dtype(self) -> str:
        check(self.dtype, "the trace has no floating tensor, so that its dtype is not known: give "
              "dtype to the Writer")
        return self.dtype

    def _keep(self, entry: Entry, at: int) -> None:
        if self._digests_only:
            # A cache is hashes already: its numbers would be beside them.
            entry = entry._replace(digest_only=True) if entry.point != "attn.kv" else \
                entry._replace(tensor=None)
        if not self.dtype and entry.dtype != "int32" and entry.point not in FLOAT32_POINTS:
            self.dtype = entry.dtype
        self._pending.put(self.numbers(1) if at < 0 else at, entry)
        if at < 0:
            self.write_many()

    def write_many(self) -> None:
        """Writes what was shown if it is much."""
        if self._pending.nbytes >= PENDING_BYTES or self._pending.count >= PENDING_COUNT:
            self._write_pending()

    def _write_pending(self) -> None:
        """Puts what was shown into the file, with digests."""
        pending, self._pending = self._pending, Pending()
        if pending.count:
            self._file.add(pending, self._passes)


def _check_tensor(point: str, layer: int, shape: Sequence[int], dtype: str, rows: int) -> None:
    """Raises LockstepError unless that can be the tensor of a point, of so many rows."""
    if len(shape) != RANKS[point] or shape[0] != rows:
        raise LockstepError(f"{point} of layer {layer} has the shape {list(shape)}: "
                            f"[{AXES[point]}] of {rows} rows was wanted")
    if (dtype == "int32") != (point in INTEGER_POINTS):
        wanted = "integers" if point in INTEGER_POINTS else "floating numbers"
        raise LockstepError(f"{point} of layer {layer} is of {dtype}: {wanted} were wanted")


def part_of(path: str | os.PathLike[str]) -> pathlib.Path:
    """Where a trace grows before it is whole."""
    return pathlib.Path(f"{os.fspath(path)}.part")


def check_free(path: str | os.PathLike[str]) -> None:
    """Raises LockstepError where a trace would take the place of what is there: that may have taken
    hours, or be no trace at all."""
    check(not os.path.isdir(path), f"{path} is a folder: name the .h5 file that the trace is to be")
    check(not os.path.lexists(path), f"{path} exists already: remove it or choose another place "
          "for the trace")
    part = part_of(path)
    check(not os.path.lexists(part), f"{part} is left of a run that did not end: move it or choose "
          "another place for the trace")


def check_point(point: str) -> None:
    """Raises LockstepError, with the nearest name, for what is no point."""
    if point in AXES:
        return
    near = nearest(point, AXES)
    raise LockstepError(f"'{point}' is no point{f': {near} is the nearest' if near else ''} "
                        "(lockstep points lists them)")
