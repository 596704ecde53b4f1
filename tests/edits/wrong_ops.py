"""Ops that compute something else: their output made anew from the trace's own inputs."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from passes import put_rope
from registry import DIVERGED, Place, add, edit
from trace_model import Pass, Trace
from wrong_values import repeat_of

Mask = Callable[[np.ndarray, int], np.ndarray]  # of the positions 0.., whether a query reads them


def cache_of(trace: Trace, layer: int, request: int, until: int) -> tuple[np.ndarray, np.ndarray]:
    """K and V of positions 0 .. until of a request, as its passes wrote them."""
    rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for one in trace.passes:
        k, v = one.find("attn.k_rope", layer), one.find("attn.v", layer)
        for label, key, value in zip(k.rows, k.values(), v.values(), strict=True):
            if label[0] == request:
                rows[label[1]] = key, value
    keys, values = zip(*(rows[position] for position in range(until + 1)), strict=True)
    return np.stack(keys), np.stack(values)


def attention(trace: Trace, one: Pass, layer: int, scale: float, mask: Mask,
              kv_head: Callable[[int], int]) -> np.ndarray:
    """attn.out of a pass in fp64."""
    q = one.find("attn.q_rope", layer)
    out = np.empty(q.shape)
    for i, ((request, position), query) in enumerate(zip(q.rows, q.values(), strict=True)):
        last = max(row.position for row in one.rows if row.request == request)
        keys, values = cache_of(trace, layer, request, last)
        hidden = ~mask(np.arange(last + 1), position)
        for head in range(q.shape[1]):
            scores = keys[:, kv_head(head)] @ query[head] * scale
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max())
            out[i, head] = weights / weights.sum() @ values[:, kv_head(head)]
    return out


def attends(name: str, why: str, mask: Mask = lambda at, position: at <= position,
            scale: float = 1.0, interleaved: bool = False, prefill: bool = False) -> None:
    """An edit of attention in layer 2 of a pass: of a chunk of a prompt, or of a decode pass."""
    def change(trace: Trace) -> Place:
        one = trace.passes[1] if prefill else repeat_of(trace)[1]
        out, many = one.find("attn.out", 2), one.find("attn.k", 2).shape[1]
        heads, dim = out.shape[1:]
        mapped = (lambda head: head % many) if interleaved else (
            lambda head: head * many // heads)
        out.put(attention(trace, one, 2, scale / np.sqrt(dim), mask, mapped))
        return Place(one.number, 2, "attn.out")
    add(name, "greedy", DIVERGED, why, change)


attends("attention-without-position-0", "no query reads position 0",
        lambda at, position: (at <= position) & (at > 0))
attends("attention-without-itself", "no query reads its own position",
        lambda at, position: at < position)
attends("attention-in-a-window", "queries read the last three positions alone",
        lambda at, position: (at <= position) & (at > position - 3))
attends("attention-of-the-future", "the queries of a chunk read positions after their own",
        lambda at, _: at >= 0, prefill=True)
attends("attention-mask-at-the-wrong-end",
        "the causal mask of a chunk is aligned with the beginning of the cache",
        lambda at, position: at <= max(position - 3, 0), prefill=True)
attends("attention-scale-2-percent-off", "scores are multiplied by 1.02 too much", scale=1.02)
attends("attention-heads-interleaved", "query heads read the K/V heads in turns",
        interleaved=True)


@edit("greedy", expect=DIVERGED)
def rope_of_one_layer_interleaved(trace: Trace) -> Place:
    """In one layer neighbouring dims are turned together, throughout, and not halves."""
    def turn(values: np.ndarray, angles: np.ndarray) -> np.ndarray:
        even, odd = values[..., ::2], values[..., 1::2]
        pairs = [even * np.cos(angles) - odd * np.sin(angles),
                 odd * np.cos(angles) + even * np.sin(angles)]
        return np.stack(pairs, axis=-1).reshape(values.shape)
    put_rope(trace, 0, [2], turn)
    return Place(0, 2, "attn.q_rope")


@edit("greedy", expect=DIVERGED)
def rope_of_one_layer_backwards(trace: Trace) -> Place:
    """In one layer Q and K are turned the other way, throughout: attention is the same."""
    def turn(values: np.ndarray, angles: np.ndarray) -> np.ndarray:
        half = values.shape[-1] // 2
        low, high = values[..., :half], values[..., half:]
        return np.concatenate([low * np.cos(angles) + high * np.sin(angles),
                               high * np.cos(angles) - low * np.sin(angles)], axis=-1)
    put_rope(trace, 0, [2], turn)
    return Place(0, 2, "attn.q_rope")
