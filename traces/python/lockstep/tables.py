"""The file of a trace while it is written: tensors as they come, then the tables about them."""
from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from lockstep import hdf5
from lockstep.digest import COUNTS, NUMBERS, xxh3
from lockstep.elements import Elements
from lockstep.errors import LockstepError, kept_from_stderr, one_line
from lockstep.graph import Node
from lockstep.hdf5 import TEXT, Columns
from lockstep.pending import Facts, Pending
from lockstep.points import AXES, LOGIT_POINTS, ORDER
from lockstep.rows import PassRows, Request, Row, requests_of
from lockstep.tensor_file import TensorFile

KEPT_LOGITS = 8
# Columns of the index that have not one entry a tensor.
INDEX_PARTS = ("shape", "exponent", "exponent_count", "run_request", "run_first", "run_count",
               "row_xxh3")


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What a trace says of its run when it ends."""

    graph: Sequence[Node]
    dtype: str
    schema: Mapping[str, str]
    provenance: Mapping[str, str]
    selection: str
    passes: Sequence[PassRows]
    requests: Sequence[Request] | None  # None: what the passes tell of them
    sampled: Mapping[int, int]          # requests whose tokens were drawn; the last of each
    level: str = "full"                 # "digest": no tensor is kept


class Output:
    """An HDF5 file that grows by tensors and ends with its tables and its seal."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        with self._trouble("made"):
            self._file = TensorFile(path)
        self._index = Columns(_index_types(), [f"{name}_edges" for name in
                                                ("shape", "exponent", "run", "row_xxh3")])
        self._count = 0  # of rows of the index
        self._top: dict[int, dict[Row, tuple[NDArray[Any], NDArray[Any]]]] = {}  # by pass
        self._chosen: dict[int, dict[Row, int]] = {}

    def add(self, pending: Pending, passes: Sequence[PassRows]) -> None:
        """Writes tensors, and their rows of the index. Passes come in order."""
        first, digests, facts = self._count, pending.digests(), pending.facts()
        with self._trouble("written"):
            for at, entry in pending.placed_entries():
                if entry.path and entry.tensor:
                    self._file.add(entry.path, entry.tensor, first + at)
            for places, block in pending.placed_blocks():
                if not block.digest_only:
                    self._file.add_block(block, first + places)
            self._file.flush()
        for entry in pending.entries:
            if entry.point in LOGIT_POINTS and entry.tensor is not None:
                rows = passes[entry.number].with_logits()
                if entry.point == "logits":
                    self._top[entry.number] = dict(zip(rows, _best_of(entry.tensor)))
                else:
                    self._chosen[entry.number] = dict(zip(rows, entry.tensor.bits.tolist()))
        self._count += pending.count
        self._index.extend(digests.columns | facts.columns |
                           {"seq": np.arange(first, self._count)})
        _add_index_parts(self._index, facts, digests.exponents, *pending.hashes(digests))

    def finish(self, facts: RunFacts) -> Sequence[Request]:
        """Writes all that is no tensor, `complete` last, and seals the file. Returns the requests
        that it names."""
        with self._trouble("written"):
            begin = self._file.finish(_axes_of)  # tensors have hashes of their own
            with hdf5.reopen(self._path) as file:
                requests = self._write_tables(file, facts)
                file.attrs["complete"] = 1
            hdf5.seal(self._path, begin)
        return requests

    def close(self) -> None:
        """Closes the file as it is."""
        with contextlib.suppress(OSError):  # what it still held is given up
            self._file.close()

    @contextlib.contextmanager
    def _trouble(self, what: str) -> Iterator[None]:
        """What the disk says becomes a sentence, also where h5py lets go of an object and says it
        to nobody."""
        try:
            with kept_from_stderr() as lost:
                yield
            if lost:
                raise lost[0]
        except (OSError, RuntimeError) as error:
            raise LockstepError(f"{self._path} cannot be {what} ({one_line(error)}): choose "
                                "another place for the trace") from error

    def _write_tables(self, file: h5py.File, facts: RunFacts) -> Sequence[Request]:
        passes = facts.passes
        top = [self._top.get(number, {}) for number in range(len(passes))]
        chosen = [self._chosen.get(number, {}) for number in range(len(passes))]
        requests = facts.requests
        if requests is None:
            argmax = [{row: int(ids[0]) for row, (ids, _) in best.items()} for best in top]
            requests = requests_of(passes, argmax, chosen, facts.sampled)
        _write_root(file, facts)
        _write_graph(file.create_group("graph"), facts.graph)
        _write_requests(file.create_group("requests"), requests)
        _write_passes(file.create_group("passes"), passes, self._index.column("pass"))
        _write_index(file.create_group("index"), self._index)
        _write_logits(file.create_group("logits"), passes, top, chosen)
        _write_summary(file.create_group("summary"), self._index, len(passes), facts.graph)
        return requests


def _axes_of(name: str) -> str:
    """By the name of a data set, which may be that of a request's cache."""
    return AXES[name.partition(".request")[0]]


def _index_types() -> dict[str, Any]:
    return {"seq": "i8", "pass": "i4", "layer": "i4", "point": TEXT, "dtype": TEXT, "axes": TEXT,
            "path": TEXT, "xxh3": "u8", "n": "i8", **dict.fromkeys(COUNTS, "i8"),
            **dict.fromkeys(NUMBERS, "f8"), "shape": "i8", "exponent": "u1",
            "exponent_count": "u4", "run_request": "i4", "run_first": "i4", "run_count": "i4",
            "row_xxh3": "u8"}


def _add_index_parts(index: Columns, facts: Facts, exponents: NDArray[np.int32],
                     rows: NDArray[np.int64], hashes: NDArray[np.uint64]) -> None:
    """rows: how many each tensor has, of which these are the hashes."""
    index.add_many("shape_edges", list(map(len, facts.shapes)),
                   {"shape": np.array(list(itertools.chain.from_iterable(facts.shapes)), np.int64)})
    tensors, bins = np.nonzero(exponents)
    index.add_many("exponent_edges", np.bincount(tensors, minlength=len(rows)),
                   {"exponent": bins, "exponent_count": exponents[tensors, bins]})
    runs = np.array(list(itertools.chain.from_iterable(facts.runs)), np.int64).reshape(-1, 3)
    index.add_many("run_edges", list(map(len, facts.runs)),
                   dict(zip(("run_request", "run_first", "run_count"), runs.T)))
    index.add_many("row_xxh3_edges", rows, {"row_xxh3": hashes})


def _best_of(logits: Elements) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Ids and values of the largest of each row; equal ones by id, NaN last."""
    found, rows = [], logits.values()
    kept = min(KEPT_LOGITS, rows.shape[1])
    nan = np.isnan(rows) if np.isnan(rows.sum()) else None
    ranks = rows if nan is None else np.where(nan, -np.inf, rows)
    for i, ranked in enumerate(ranks):
        least = np.partition(ranked, len(ranked) - kept)[len(ranked) - kept]
        some = np.flatnonzero(ranked >= least)
        last = np.zeros(len(some), bool) if nan is None else nan[i][some]
        best = some[np.lexsort((some, last, -ranked[some]))[:kept]]
        found.append((best.astype(np.int32), rows[i][best].astype(np.float64)))
    return found


def _write_root(file: h5py.File, facts: RunFacts) -> None:
    provenance = {name: str(value) for name, value in facts.provenance.items()}
    run_id = provenance.get("run_id") or \
        f"{xxh3(json.dumps([provenance, facts.dtype], sort_keys=True).encode()):016x}"
    file.attrs.update({
        "format": "lockstep", "format_version": "2.1", "level": facts.level, "run_id": run_id,
        "rank": 0, "world_size": 1, "dtype": facts.dtype, "selection": facts.selection,
        "default": "summary", "NX_class": "NXroot"})
    schema = json.dumps(dict(facts.schema))
    file.create_group("provenance").attrs.update(provenance | {"schema_json": schema})


def _write_graph(group: h5py.Group, graph: Sequence[Node]) -> None:
    columns = Columns({"point": TEXT, "layer": "i4", "input": "i4"}, ["input_edges"])
    for node in graph:
        columns.add({"point": node.point, "layer": node.layer})
        columns.add_parts("input_edges", {"input": node.inputs})
    columns.write(group)


def _write_requests(group: h5py.Group, requests: Sequence[Request]) -> None:
    lists = ("prompt", "forced", "tokens", "argmax")
    columns = Columns({"id": "i4", "name": TEXT, "sampled": "i4", **dict.fromkeys(lists, "i4")},
                      [f"{name}_edges" for name in lists])
    for request in requests:
        columns.add({"id": request.id, "name": request.name, "sampled": int(request.sampled)})
        for name in lists:
            columns.add_parts(f"{name}_edges", {name: getattr(request, name)})
    columns.write(group)


def _write_passes(group: h5py.Group, passes: Sequence[PassRows],
                  numbers: NDArray[np.int64]) -> None:
    """The rows of each pass; `numbers` has that of each tensor. Of pages nothing is known."""
    columns = Columns({"number": "i4", "pass": "i4", "request": "i4", "position": "i4",
                       "slot": "i8", "phase": "u1", "token": "i4", "logit_rows": "i4",
                       "table_pass": "i4", "table_request": "i4"},
                      ["row_edges", "logit_row_edges", "table_edges"])
    for number, run in enumerate(passes):
        columns.add({"number": number})
        columns.add_parts("row_edges", {
            "pass": [number] * len(run.rows), "slot": [-1] * len(run.rows),
            "request": [row.request for row in run.rows],
            "position": [row.position for row in run.rows],
            "phase": [int(row.decode) for row in run.rows],
            "token": [row.token for row in run.rows]})
        columns.add_parts("logit_row_edges", {"logit_rows": run.logit_rows})
        columns.add_parts("table_edges", {"table_pass": (), "table_request": ()})
    columns.write(group)
    tensors = np.bincount(numbers, minlength=len(passes))
    group.create_dataset("tensor_edges", data=np.cumsum([0, *tensors], dtype="i8"))
    group.create_dataset("pages", data=np.zeros(0, "i4"))
    group.create_dataset("page_edges", data=np.zeros(1, "i8"))
    _write_inherited(group, passes)


def _write_inherited(group: h5py.Group, passes: Sequence[PassRows]) -> None:
    """What requests enter with; nothing is said where one enters and what with is not known."""
    known: set[int] = set()
    columns = Columns({"inherited_request": "i4", "inherited_tokens": "i4"},
                      ["inherited_token_edges"])
    ends = [0]
    for run in passes:
        entering = {row.request: row.position for row in reversed(run.rows)}
        for request, position in reversed(entering.items()):
            if request not in known and position > 0 and request not in run.inherited:
                return
            known.add(request)
        for request, tokens in run.inherited.items():
            columns.add({"inherited_request": request})
            columns.add_parts("inherited_token_edges", {"inherited_tokens": tokens})
        ends.append(ends[-1] + len(run.inherited))
    columns.write(group)
    group.create_dataset("inherited_edges", data=np.array(ends, "i8"))


def _write_index(group: h5py.Group, index: Columns) -> None:
    index.write(group, group.create_group("parts"), INDEX_PARTS)
    group["seq"].make_scale("seq")
    for name, column in group.items():
        if name not in ("seq", "parts"):
            column.dims[0].attach_scale(group["seq"])


def _write_logits(group: h5py.Group, passes: Sequence[PassRows],
                  top: Sequence[Mapping[Row, tuple[NDArray[Any], NDArray[Any]]]],
                  chosen: Sequence[Mapping[Row, int]]) -> None:
    columns = Columns({"pass": "i4", "request": "i4", "position": "i4", "chosen": "i4",
                       "margin": "f8", "ids": "i4", "values": "f8"})
    ends, kept = [0], 0
    for number, run in enumerate(passes):
        for row in run.with_logits():
            if row not in top[number]:
                continue
            ids, values = top[number][row]
            kept = len(ids)
            columns.add({"pass": number, "request": row.request, "position": row.position,
                         "chosen": chosen[number].get(row, -1), "ids": ids, "values": values,
                         "margin": values[0] - values[1] if kept > 1 else math.inf})
        ends.append(columns.count("pass"))
    columns.write(group)
    group.create_dataset("edges", data=np.array(ends, "i8"))


def _write_summary(group: h5py.Group, index: Columns, passes: int, graph: Sequence[Node]) -> None:
    """A picture of the run: by pass, layer and point."""
    group.attrs.update({"NX_class": "NXdata", "signal": "rms"})
    group.attrs.create("axes", ["pass", "layer", "point"], dtype=TEXT)
    layers = 1 + max(node.layer for node in graph)
    scales = {"pass": np.arange(passes, dtype="i4"), "layer": np.arange(-1, layers, dtype="i4"),
              "point": np.array(list(AXES), dtype=object)}
    for name, values in scales.items():
        kind = TEXT if name == "point" else values.dtype
        group.create_dataset(name, data=values, dtype=kind).make_scale(name)
    shape = tuple(len(values) for values in scales.values())
    known = {name: index.column(name)
             for name in ("rms", "absmax", "mean", "nan", "posinf", "neginf")}
    seen = known["nan"] >= 0
    known["nonfinite"] = known["nan"] + known["posinf"] + known["neginf"]
    places = (index.column("pass")[seen], index.column("layer")[seen] + 1,
              np.array([ORDER[point] for point in index.column("point")], np.int64)[seen])
    for signal in ("rms", "absmax", "mean", "nonfinite"):
        cube = np.full(shape, np.nan)
        cube[places] = known[signal][seen]
        data = group.create_dataset(signal, data=cube)
        for axis, name in enumerate(scales):
            data.dims[axis].attach_scale(group[name])
