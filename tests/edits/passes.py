"""What edits do to passes: take rows out, split, join, number anew, rename, give new pages."""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from trace_model import Label, Pass, Tensor, Trace, clone_pass, clone_tensor


def renumber(trace: Trace) -> None:
    for i, one in enumerate(trace.passes):
        one.number = i


def keep_rows(one: Pass, wanted: Callable[[Label], bool]) -> None:
    """Takes all other rows out of a pass, and what is of them out of its tensors and tables."""
    kept = [i for i, row in enumerate(one.rows) if wanted(row.label)]
    one.logit_rows = [kept.index(i) for i in one.logit_rows if i in kept]
    one.rows = [one.rows[i] for i in kept]
    present = set(one.requests())
    one.pages = [table for table in one.pages if table[0] in present]
    one.inherited = [heir for heir in one.inherited if heir[0] in present]
    one.best = [best for best in one.best if wanted((best.request, best.position))]
    one.tensors = [tensor for tensor in one.tensors
                   if not tensor.is_cache or tensor.rows[0][0] in present]
    for tensor in one.tensors:
        if not tensor.is_cache:
            tensor.take([i for i, label in enumerate(tensor.rows) if wanted(label)])
    one.tensors = [tensor for tensor in one.tensors if tensor.rows]


def keep_rows_of(one: Pass, request: int) -> None:
    keep_rows(one, lambda label: label[0] == request)


def drop_request(trace: Trace, request: int) -> None:
    """Takes a request out of a trace, with all that is of it."""
    for one in trace.passes:
        keep_rows(one, lambda label: label[0] != request)
    trace.passes = [one for one in trace.passes if one.rows]
    trace.requests = [one for one in trace.requests if one.id != request]
    renumber(trace)


def split(one: Pass) -> list[Pass]:
    """A pass of several requests as passes of one request each."""
    parts = []
    for request in one.requests():
        part = clone_pass(one)
        keep_rows_of(part, request)
        parts.append(part)
    return parts


def joined_tensors(first: Tensor, second: Tensor) -> Tensor:
    tensor = clone_tensor(first)
    tensor.rows = first.rows + second.rows
    assert first.bits is not None and second.bits is not None
    tensor.put_bits(np.concatenate([first.bits, second.bits]))
    return tensor


def join(first: Pass, second: Pass) -> Pass:
    """Two passes of the same single request, the second next to the first, as one."""
    whole = clone_pass(second)
    whole.rows = first.rows + whole.rows
    whole.logit_rows = first.logit_rows + [i + len(first.rows) for i in second.logit_rows]
    whole.inherited = first.inherited + second.inherited
    whole.best = first.best + second.best
    before = {(t.point, t.layer): t for t in first.tensors if not t.is_cache}
    whole.tensors = [joined_tensors(before[t.point, t.layer], t)
                     if (t.point, t.layer) in before else t for t in whole.tensors]
    return whole


def relabel(one: Pass, label: Callable[[Label], Label]) -> None:
    """Gives the rows of a pass other requests and positions, in it and in its tensors."""
    for row in one.rows:
        row.request, row.position = label(row.label)
    for best in one.best:
        best.request, best.position = label((best.request, best.position))
    for tensor in one.tensors:
        tensor.rows = [label(old) for old in tensor.rows]


def rename_in(one: Pass, name: Callable[[int], int]) -> None:
    """Gives the requests of a pass other ids; not those that it inherits for."""
    relabel(one, lambda label: (name(label[0]), label[1]))
    one.pages = [(name(request), pages) for request, pages in one.pages]


def rename(trace: Trace, name: Callable[[int], int]) -> None:
    """Gives requests other ids, throughout."""
    for one in trace.passes:
        rename_in(one, name)
        one.inherited = [(name(request), tokens) for request, tokens in one.inherited]
    for request in trace.requests:
        request.id = name(request.id)


def repage(trace: Trace, page_of: Callable[[int, int], int], size: int) -> None:
    """Other pages: `page_of` a request and the number of a page of its positions."""
    trace.provenance["page_size"] = str(size)
    for one in trace.passes:
        last = {row.request: row.position for row in one.rows}
        one.pages = [(request, [page_of(request, i) for i in range(last[request] // size + 1)])
                     for request, _ in one.pages]
        for row in one.rows:
            row.slot = page_of(row.request, row.position // size) * size + row.position % size


def page_size(trace: Trace) -> int:
    return int(trace.provenance["page_size"])


def config_of(trace: Trace) -> dict:
    return json.loads((Path(trace.provenance["model"]) / "config.json").read_text())


def theta_of(trace: Trace) -> float:
    config = config_of(trace)
    return config.get("rope_theta") or config["rope_parameters"]["rope_theta"]


def turn_halves(values: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """RoPE of [row, head, dim] in fp64: the halves of a head are turned together."""
    half = values.shape[-1] // 2
    low, high = values[..., :half], values[..., half:]
    return np.concatenate([low * np.cos(angles) - high * np.sin(angles),
                           high * np.cos(angles) + low * np.sin(angles)], axis=-1)


def put_rope(trace: Trace, shift: int = 0, layers: Sequence[int] | None = None,
             turn: Callable[[np.ndarray, np.ndarray], np.ndarray] = turn_halves) -> None:
    """Makes what RoPE makes anew, from positions that are `shift` further, and the cache of it."""
    theta, layers = theta_of(trace), range(trace.layers) if layers is None else layers
    for one in trace.passes:
        for layer in layers:
            for side in "qk":
                source = one.find(f"attn.{side}_norm", layer)
                positions = np.array([position + shift for _, position in source.rows])
                half = source.shape[-1] // 2
                angles = positions[:, None, None] * theta ** (-np.arange(half) / half)
                one.find(f"attn.{side}_rope", layer).put(turn(source.values(), angles))
    for layer in layers:
        trace.spread_cache(0, layer)
