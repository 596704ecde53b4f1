"""Imports what other tools dumped as a trace: their names by a map, their rows by their own ids."""
from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts import rounding
from lockstep.dumps import read_dump
from lockstep.dumps.dump import Dump, is_tensor
from lockstep.dumps.loads import Load
from lockstep.elements import Elements, elements_of
from lockstep.errors import DAMAGE, LockstepError, check, reading
from lockstep.graph import dimensions, graph_of, read_config
from lockstep.mapping import Map, Rule, read_map
from lockstep.points import LOGIT_POINTS, Place, nearest
from lockstep.requesting import PassIds, Requests
from lockstep.shards import PARTIALS, Joined, Shards, Unlike
from lockstep.writer import Writer, check_free

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
MOST_UNLIKE = 1000    # of a trace's list of where ranks were not alike
KNOWN_TO_NOBODY = 12  # how many unknown names a report lists


@dataclasses.dataclass
class Imported:
    """What became of a dump."""

    kind: str                       # its format
    passes: int = 0
    tensors: int = 0
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)  # name -> nearest known one
    skipped: list[str] = dataclasses.field(default_factory=list)       # no tensors, or misfits
    notes: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.tensors} tensors of {self.passes} passes imported"]
        if self.unknown:
            shown = list(self.unknown.items())[:KNOWN_TO_NOBODY]
            lines.append(f"{len(self.unknown)} names are of no point and were left out:")
            lines += [f"  {name}{f'  (nearest: {near})' if near else ''}" for name, near in shown]
            if len(self.unknown) > len(shown):
                lines.append(f"  ... and {len(self.unknown) - len(shown)} more")
        if self.skipped:
            lines.append(f"{len(self.skipped)} things were skipped, the first: {self.skipped[0]}")
        return "\n".join(lines + self.notes)


def import_dump(source: str | os.PathLike[str], out: str | os.PathLike[str], *,
                names: str | os.PathLike[str], model: str | os.PathLike[str], kind: str = "",
                dtype: str = "", tokens: Sequence[int] = (), schema: str = "") -> Imported:
    """Writes a dump as a trace.

    names: a map, by name (lockstep.mapping.names()) or path. model: the checkpoint's folder. kind:
    the dump's format; "": what it looks like. dtype: of the run; "": what the map or else
    config.json says. tokens: what the first passes were fed, where the dump does not say, or has
    what was chosen and something else was fed. schema: an
    engine whose rounding is declared (lockstep.contracts.rounding); "": what the map says. Raises
    LockstepError, and writes nothing, where nothing can be made of it, and where `out` is there
    already, is of the dump, or lies in the checkpoint.
    """
    config = read_config(pathlib.Path(model))
    _check_out(out, source, model)
    mapping = read_map(names if isinstance(names, str) else pathlib.Path(names))
    said = DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")), "fp32")
    run = dtype or mapping.dtype or said
    check(run in DTYPES.values(), f"'{run}' is no dtype of a run: {', '.join(DTYPES.values())}")
    with reading(str(source)):
        found_kind, dump = read_dump(pathlib.Path(source), kind)
    report = Imported(found_kind, skipped=list(dump.skipped))
    facts = {"engine": f"imported from {found_kind}", "source": str(source), "map": str(names)}
    declared = rounding(schema) if schema else mapping.schema
    ranks = 1 + len(dump.others)
    if ranks > 1:
        facts["ranks"] = str(ranks)
    with Writer(out, config, dtype=run, schema=declared, provenance=facts,
                graph=graph_of(config, ranks)) as writer:
        writer.say = report.notes.append
        shards = Shards(dimensions(config), ranks)
        importer = Importer(writer, mapping, shards, run, report)
        importer.take(dump, tokens)
        if importer.unlike:
            writer.provenance["ranks_apart"] = json.dumps(importer.unlike[:MOST_UNLIKE])
        check(report.tensors, f"{source}: {_nothing_text(report, str(names))}")
    return report


def _check_out(out: str | os.PathLike[str], source: str | os.PathLike[str],
               model: str | os.PathLike[str]) -> None:
    """Raises LockstepError unless the trace takes the place of nothing, least of all of what it is
    made from."""
    place = pathlib.Path(out).resolve()
    within = (place, *place.parents)
    check(not (place.exists() and pathlib.Path(source).resolve() in within),
          f"{out} is of the dump that is imported, {source}: name a new file for the trace")
    check(pathlib.Path(model).resolve() not in within,
          f"{out} lies in the checkpoint {model}, which is read and left as it is: choose another "
          "place for the trace")
    check_free(out)


def _nothing_text(report: Imported, names: str) -> str:
    """Why there is nothing to be imported."""
    if not report.passes and report.notes:
        # What the first pass was fed, and why that could not be read.
        why = [text for text in report.skipped[:1] if not text.startswith("pass ")]
        return "; ".join([report.notes[0], *why])
    reasons = []
    if report.skipped:
        reasons.append(f"no tensor of it can be taken, the first: {report.skipped[0]}")
    if report.unknown:
        reasons.append(f"the map {names} has no point for {len(report.unknown)} of its names, the "
                       f"first {next(iter(report.unknown))}")
    if reasons:
        return "; ".join(reasons)
    return "it has no tensors" + (" besides what its passes were fed" if report.passes else "")


LOGITS: Place = (-1, "logits")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A tensor of a dump before it is read."""

    key: str
    loads: Sequence[Load]        # by rank
    rule: Rule
    all_places: Sequence[Place]  # of its parts
    places: Sequence[Place]      # that are taken from it


class Importer:
    """Takes the passes of a dump into a trace."""

    def __init__(self, writer: Writer, mapping: Map, shards: Shards, dtype: str,
                 report: Imported) -> None:
        self.writer, self.mapping, self.shards, self.sizes = writer, mapping, shards, shards.sizes
        self.unlike: list[dict[str, Any]] = []  # as ranks_apart of a trace has them
        self.dtype, self.report = dtype, report
        self.places = {(node.layer, node.point) for node in writer.graph}
        self.requests = Requests()
        self._all_chose = True
        self._left_out = False  # some pass is
        self.rows: list[tuple[int, int]] = []  # request and position of each row of the pass
        self._keep: NDArray[np.bool_] | None = None  # rows of its tensors that are no padding

    def take(self, dump: Dump, tokens: Sequence[int]) -> None:
        for number, loads in enumerate(dump.passes):
            others = [other.passes[number] for other in dump.others]
            ids = self._ids(loads, tokens)
            if ids is not None:
                tokens = tokens[len(ids.tokens):]
            wanted = list(self._wanted(loads, others))
            unknown = self._unknown_of(ids)
            if ids is None or unknown:
                self._left_out = True
                self.report.skipped += [f"pass {number}: {key}" for key in loads][:1]
                self.report.notes.append(f"pass {number} {unknown}")
                continue
            self._take_pass(ids, wanted)
            for rank, other in enumerate(others, 1):
                self._compare_ids(rank, ids, self._ids(other, ()))

    def _unknown_of(self, ids: PassIds | None) -> str:
        """Why nobody can say whose rows those of a pass are; "": they are known, or a note says
        what they are taken for."""
        if ids is None:
            return "says not which tokens it was fed, and is left out: dump input_ids too, or " \
                "name them (--tokens)"
        if ids.positions is not None:
            return ""
        named, rows = ids.requests, len(ids.tokens)
        if named is not None and len(named) not in (1, rows):
            return f"names {len(named)} requests and no position of its {rows} rows, and is left " \
                "out: dump positions too"
        if named is None and self.requests.several:
            return "names neither positions nor requests, of which the dump had several so " \
                "far, and is left out: dump both"
        if self._left_out:
            return "names no positions and comes after one that is left out, and so is it: dump " \
                "positions too"
        note = "no positions are named: each row was taken to stand behind those that its " \
            "request had so far" if named is not None else "neither positions nor requests are " \
            "named: all rows were taken for one request's, each behind the one before; dump " \
            "both, or a batch's attention_mask, if there were more"
        if note not in self.report.notes:
            self.report.notes.append(note)
        return ""

    def _take_pass(self, ids: PassIds, wanted: Sequence[Wanted]) -> None:
        """A tensor at a time, for all of a pass may be more than the memory; logits come first,
        because they tell how many rows have some."""
        self._keep = ids.keep
        found: dict[Place, Joined] = {}
        for one in wanted:
            if LOGITS in one.places and LOGITS not in found:
                found.update((joined.place, joined) for joined in self._parts(one))
        wide = self.sizes["V"]
        logits = self._recorded(found[LOGITS].elements, wide) if LOGITS in found else None
        count = 0 if logits is None else logits.bits.size // wide
        owners, positions = self.requests.enter(ids, count)
        rows = self._logit_rows(owners, count)
        # A pass without logits does not say where a token was chosen: from there on a row alone is
        # taken for decode.
        self._all_chose = self._all_chose and bool(rows)
        alone = [owners.count(owner) == 1 and at > 0 for owner, at in zip(owners, positions)]
        self.writer.begin_pass(ids.tokens.tolist(), positions, owners, logit_rows=rows,
                               decode=None if self._all_chose else alone)
        self.rows = list(zip(owners, positions))
        self.report.passes += 1
        taken: set[Place] = set()  # the first of a place that can be read and fits
        for one in wanted:
            if taken.issuperset(one.places):
                continue
            parts = list(found.values()) if LOGITS in one.places else self._parts(one)
            for part in parts:
                layer, point = part.place
                if part.place in taken:
                    continue
                if point == "attn.kv":
                    taken.update(self._show_cache(layer, part.elements, taken))
                elif self._show(layer, point, part.elements, len(owners), rows):
                    taken.add(part.place)
                    if part.unlike:
                        self._note_unlike(part.unlike)
        if logits is not None and rows and (-1, "token") not in taken:
            # Dumps have no choices; what was fed and is not the likeliest counts as forced.
            best = logits.values().reshape(count, wide).argmax(-1)
            self.writer.show("token", None, best.astype(np.int32))

    def _logit_rows(self, owners: Sequence[int], count: int) -> list[int]:
        last = sorted({owner: i for i, owner in enumerate(owners)}.values())
        if count == len(owners):
            return list(range(count))
        return last if count == len(last) else []

    def _show(self, layer: int, point: str, elements: Elements, rows: int,
              logit_rows: Sequence[int]) -> bool:
        """A tensor of all rows, or of those with logits, whatever its axes were; False: it fits
        neither."""
        shape = self._row_shape(point)
        size = math.prod(shape)
        elements = self._recorded(elements, size)
        count, rest = divmod(elements.bits.size, size)
        if not elements.bits.size and not logit_rows:
            return False  # of a pass without logits nothing more was computed
        of_logits = point in LOGIT_POINTS or (count == len(logit_rows) != rows)
        if rest or count != (len(logit_rows) if of_logits else rows) or not count:
            self.report.skipped.append(
                f"{point} of layer {layer} is {list(elements.bits.shape)}, which is not {rows} "
                f"rows of {list(shape)}")
            return False
        if elements.dtype not in (self.dtype, "int32"):
            self._note_dtype(f"{point} of layer {layer}", elements.dtype)
        shaped = Elements(elements.bits.reshape(count, *shape), elements.dtype)
        if of_logits and point not in LOGIT_POINTS:
            self.writer.show(point, layer, shaped.bits, dtype=shaped.dtype, rows=logit_rows)
        else:
            self.writer.show_elements(point, layer, shaped)
        self.report.tensors += 1
        return True

    def _show_cache(self, layer: int, elements: Elements, taken: set[Place]) -> list[Place]:
        """K and V as attention reads them, [request, 2, kv head, column, dim]. What the pass put
        there is attn.k_rope and attn.v, where the dump has these nowhere else. Returns what was
        shown."""
        ends = {owner: at + 1 for owner, at in self.rows}
        count, dim = self._row_shape("attn.k")
        axes = elements.bits.shape
        if len(axes) != 5 or axes[:3] != (len(ends), 2, count) or axes[4] != dim \
                or axes[3] < max(ends.values()):
            self.report.skipped.append(f"attn.kv of layer {layer} is {list(axes)}, which is not K "
                                       f"and V of {len(ends)} requests, {count} heads of {dim}")
            return []
        read = {owner: np.ascontiguousarray(part[:, :, :end].transpose(2, 0, 1, 3))
                for part, (owner, end) in zip(elements.bits, ends.items())}
        new = np.stack([read[owner][at] for owner, at in self.rows])
        shown: list[Place] = []
        for side, point in enumerate(("attn.k_rope", "attn.v")):
            if (layer, point) not in taken:
                self.writer.show(point, layer, new[:, side], dtype=elements.dtype)
                shown.append((layer, point))
        for owner, part in read.items():
            self.writer.show_cache(layer, owner, part, dtype=elements.dtype)
        self.report.tensors += len(shown) + len(read)
        return [*shown, (layer, "attn.kv")]

    def _note_dtype(self, where: str, dtype: str) -> None:
        note = f"some tensors are {dtype} where the run is {self.dtype}, the first: "
        if not any(text.startswith(note) for text in self.report.notes):
            self.report.notes.append(f"{note}{where}; if the engine computed in {dtype}, import it "
                                     f"with --dtype {dtype}")

    def _row_shape(self, point: str) -> tuple[int, ...]:
        h, inner = self.sizes["h"], self.sizes["I"]
        heads = (self.sizes["H"], self.sizes["D"])
        kv_heads = (self.sizes["K"], self.sizes["D"])
        if point == "token":
            return ()
        if point in PARTIALS.values():
            return (self.shards.ranks, h)
        return {"attn.q": heads, "attn.q_norm": heads, "attn.q_rope": heads, "attn.out": heads,
                "attn.k": kv_heads, "attn.v": kv_heads, "attn.k_norm": kv_heads,
                "attn.k_rope": kv_heads, "mlp.gate": (inner,), "mlp.up": (inner,),
                "mlp.act": (inner,), "logits": (self.sizes["V"],)}.get(point, (h,))

    def _ids(self, loads: dict[str, Load], tokens: Sequence[int]) -> PassIds | None:
        found: dict[str, NDArray[np.int64] | None] = {}
        mask: NDArray[Any] | None = None
        for kind, pattern in self.mapping.rows.items():
            key = next((key for key in loads if pattern.fullmatch(key)), "")
            if kind == "mask":
                mask = self._mask(loads[key]) if key else None
                continue
            value = self._loaded(key, loads[key]) if key else None
            found[kind] = None if value is None else value.bits.astype(np.int64).reshape(-1)
        own, rows = found["tokens"], found["positions"]
        count = len(tokens) if rows is None else len(rows)
        if len(tokens) and (own is None or rows is not None and len(tokens) >= count):
            found["tokens"] = np.array(tokens, np.int64)[:count]
        if found["tokens"] is None:
            return None
        ids = PassIds(found["tokens"], found["positions"], found["lengths"], found["requests"])
        return ids if mask is None else ids.without_padding(mask)

    @staticmethod
    def _mask(load: Load) -> NDArray[Any] | None:
        """[batch, column so far]; None: it is of another kind, of a row and a column say."""
        try:
            value = load()
            mask = value.bits if isinstance(value, Elements) else np.asarray(value)
        except (LockstepError, *DAMAGE):
            return None
        return mask if mask.ndim == 2 and len(mask) and mask.dtype.kind in "iub" else None

    def _recorded(self, elements: Elements, size: int) -> Elements:
        """Rows of `size` elements without those of padding."""
        keep, bits = self._keep, elements.bits
        if keep is None or bits.size != len(keep) * size:
            return elements
        return Elements(bits.reshape(len(keep), size)[keep], elements.dtype)

    def _note_unlike(self, found: Unlike) -> None:
        row = self.writer.row_of(found.place[1], found.row)
        self.unlike.append({
            "pass": self.report.passes - 1, "layer": found.place[0], "point": found.place[1],
            "request": row.request, "position": row.position, "rank": found.rank,
            "xxh3": f"{found.own:016x}", "first_xxh3": f"{found.first:016x}", "says": found.says})

    def _compare_ids(self, rank: int, ids: PassIds, other: PassIds | None) -> None:
        """Ranks are fed the same tokens, where each says which."""
        if other is None or np.array_equal(ids.tokens, other.tokens):
            return
        row = 0
        if len(ids.tokens) == len(other.tokens):
            row = int(np.flatnonzero(ids.tokens != other.tokens)[0])
        self._note_unlike(Unlike((-1, "embed.partial"), row, rank, 0, 0,
                                 f"rank {rank} leaves rank 0 in what it is fed"))

    def _wanted(self, loads: dict[str, Load], others: Sequence[dict[str, Load]]
                ) -> Iterator[Wanted]:
        """The tensors of a pass that are of places and in all ranks, in its order."""
        for key, load in loads.items():
            if any(pattern.fullmatch(key) for pattern in self.mapping.rows.values()):
                continue
            rule = self.mapping.rule_of(key, self.sizes["L"])
            if rule is None:
                self._note_unknown(key)
                continue
            places = [place for place in rule[1] if place in self.places]
            beyond = [layer for layer, _ in rule[1] if layer >= self.sizes["L"]]
            if beyond and not places:
                self.report.skipped.append(f"{key} is of layer {beyond[0]}, and the model has "
                                           f"{self.sizes['L']}")
            without = [rank for rank, other in enumerate(others, 1) if key not in other]
            if without:
                self.report.skipped.append(f"{key} is not in rank {without[0]}")
            elif places:
                loads_of = [load, *(other[key] for other in others)]
                yield Wanted(key, loads_of, rule[0], rule[1], places)

    def _parts(self, one: Wanted) -> list[Joined]:
        """What is in it, by place, of all ranks together."""
        by_rank = []
        for load in one.loads:
            value = self._loaded(one.key, load)
            if value is None:
                return []
            by_rank.append(self._split(one.key, value, one.rule))
        return [self.shards.join(place, parts) for place, parts in
                zip(one.all_places, zip(*by_rank)) if place in one.places]

    def _loaded(self, key: str, load: Load) -> Elements | None:
        """The tensor as elements; None, and why is noted, where it is none."""
        try:
            with reading(key):
                value = load()
            if is_tensor(value):
                return value if isinstance(value, Elements) else elements_of(value)
            self.report.skipped.append(f"{key} is no tensor")
        except LockstepError as error:
            said = str(error)
            self.report.skipped.append(said if key in said else f"{key}: {said}")
        return None

    def _split(self, key: str, value: Elements, rule: Rule) -> list[Elements]:
        elements = self._narrowed(value)
        if not rule.split:
            return [elements]
        sizes = [math.prod(self.shards.local[letter] for letter in part.split("*"))
                 for part in rule.split]
        if elements.bits.shape[-1:] != (sum(sizes),):
            self.report.skipped.append(f"{key} is {list(elements.bits.shape)}, its last axis is to "
                                       f"have {' + '.join(rule.split)} = {sum(sizes)}")
            return []
        return [Elements(np.ascontiguousarray(part), elements.dtype) for part in
                np.split(elements.bits, np.cumsum(sizes)[:-1], axis=-1)]

    def _narrowed(self, elements: Elements) -> Elements:
        """fp32 that a 16-bit run widened for the dump is of its dtype again, where it is exact."""
        if elements.dtype != "fp32" or self.dtype == "fp32":
            return elements
        if self.dtype == "fp16":
            with np.errstate(over="ignore"):
                narrow = elements.bits.astype(np.float16)
            same = np.array_equal(narrow.astype(np.float32), elements.bits, equal_nan=True)
            return Elements(narrow, "fp16") if same else elements
        raw = elements.bits.view(np.uint32)
        return elements if (raw & 0xFFFF).any() else Elements((raw >> 16).astype(np.uint16), "bf16")

    def _note_unknown(self, key: str) -> None:
        """Names that no rule has; what a module was given is mostly what another returned."""
        name = re.sub(r"layers\.\d+", "layers.N", key)
        if ":in." in key or name in self.report.unknown:
            return
        known = [_example_of(rule.match.pattern) for rule in self.mapping.rules] \
            if len(self.report.unknown) < KNOWN_TO_NOBODY else []
        self.report.unknown[name] = nearest(name, known)


def _example_of(pattern: str) -> str:
    """A key that a rule of a map may match."""
    return re.sub(r"\(([^()|]*)(\|[^()]*)?\)\??", r"\1", pattern.replace("(\\d+)", "N")
                  ).replace("\\", "")
