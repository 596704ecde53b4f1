"""Wrong numbers: each kind of damage at each point, with all hashes and statistics true to it."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from registry import DIVERGED, DOUBT, Change, Place, add, edit, wants
from tensors import bits_of, values_of
from trace_model import DoesNotFit, Pass, Tensor, Trace, clone_tensor

MODEL_POINTS = ["embed", "final.norm", "logits"]
HEAD_POINTS = ["attn.q", "attn.k", "attn.v", "attn.q_norm", "attn.k_norm", "attn.q_rope",
               "attn.k_rope", "attn.out"]
DENSE_POINTS = ["mlp.gate", "mlp.up", "mlp.act", "mlp.down"]
EXPERT_POINTS = ["mlp.router", "mlp.weights", "mlp.expert_gate", "mlp.expert_up",
                 "mlp.expert_act", "mlp.expert_down", "mlp.combine"]
SHARED_POINTS = ["embed", "attn.norm", *HEAD_POINTS, "attn.o", "attn.residual", "mlp.norm"]
GREEDY_POINTS = [*SHARED_POINTS, *DENSE_POINTS, "mlp.residual", "final.norm", "logits"]

Damage = Callable[[Trace, int, Tensor], np.ndarray]  # new bits of a tensor of pass i


def layer_of(trace: Trace, point: str) -> int:
    return -1 if point in MODEL_POINTS else trace.layers // 2


def is_repeat(trace: Trace, i: int) -> bool:
    """Whether pass i decodes for the same two or more requests as the pass before it."""
    now, before = trace.passes[i], trace.passes[i - 1]
    return (i > 0 and len(now.rows) == len(now.requests()) == len(before.rows) > 1
            and now.requests() == before.requests())


def settle(trace: Trace, i: int, tensor: Tensor) -> None:
    """Whatever is copied from a tensor is true to it: the cache, and the best of logits."""
    if tensor.point in ("attn.k_rope", "attn.v"):
        trace.spread_cache(i, tensor.layer, set(tensor.rows))
    if tensor.point == "logits":
        trace.passes[i].refresh_best()


def damaged(point: str, damage: Damage) -> Change:
    """An edit of one tensor, of the first fitting pass where the damage changes a bit."""
    def change(trace: Trace) -> Place:
        layer = layer_of(trace, point)
        for i in filter(lambda i: is_repeat(trace, i), range(len(trace.passes))):
            tensor = trace.passes[i].find(point, layer)
            new = damage(trace, i, tensor)
            if not np.array_equal(new, bits(tensor)):
                tensor.put_bits(new)
                settle(trace, i, tensor)
                return Place(trace.passes[i].number, layer, point)
        raise DoesNotFit("no pass where this changes a bit")
    return change


def bits(tensor: Tensor) -> np.ndarray:
    assert tensor.bits is not None
    return tensor.bits.copy()


def middle(tensor: Tensor) -> int:
    """The flat index of an element of middling magnitude."""
    magnitude = np.abs(tensor.values()).ravel()
    return int(np.argsort(magnitude)[magnitude.size * 3 // 4])


def ulps_up(ulps: int) -> Damage:
    def damage(_: Trace, __: int, tensor: Tensor) -> np.ndarray:
        out = bits(tensor)
        out.ravel()[tensor.digest.absmax_at] += ulps
        return out
    return damage


def with_value(value: Callable[[float], float]) -> Damage:
    def damage(_: Trace, __: int, tensor: Tensor) -> np.ndarray:
        out, at = bits(tensor), middle(tensor)
        old = tensor.values().ravel()[at]
        out.ravel()[at] = bits_of(np.array([value(old)]), tensor.dtype)[0]
        return out
    return damage


def rows_swapped(_: Trace, __: int, tensor: Tensor) -> np.ndarray:
    out = bits(tensor)
    out[[0, -1]] = out[[-1, 0]]
    return out


def first_part_zeroed(_: Trace, __: int, tensor: Tensor) -> np.ndarray:
    """The first head, or of what has none the first eighth of the columns."""
    out = bits(tensor)
    if tensor.point in HEAD_POINTS:
        out[:, 0] = 0
    else:
        out[..., :max(1, out.shape[-1] // 8)] = 0
    return out


def columns_shifted(_: Trace, __: int, tensor: Tensor) -> np.ndarray:
    return np.roll(bits(tensor), 1, axis=-1)


def heads_rolled(_: Trace, __: int, tensor: Tensor) -> np.ndarray:
    return np.roll(bits(tensor), 1, axis=1)


def halves_swapped(_: Trace, __: int, tensor: Tensor) -> np.ndarray:
    return np.roll(bits(tensor), tensor.shape[-1] // 2, axis=-1)


def of_another_layer(trace: Trace, i: int, tensor: Tensor) -> np.ndarray:
    return bits(trace.passes[i].find(tensor.point, tensor.layer - 1))


def of_the_pass_before(trace: Trace, i: int, tensor: Tensor) -> np.ndarray:
    return bits(trace.passes[i - 1].find(tensor.point, tensor.layer))


def doubled(_: Trace, __: int, tensor: Tensor) -> np.ndarray:
    return bits_of(2 * tensor.values(), tensor.dtype)


def coarse(_: Trace, __: int, tensor: Tensor) -> np.ndarray:
    """Half the digits of the mantissa dropped."""
    dropped = {"bf16": 4, "fp16": 5, "fp32": 16}[tensor.dtype]
    return bits(tensor) >> dropped << dropped


def one_row_of_the_pass_before(trace: Trace, i: int, tensor: Tensor) -> np.ndarray:
    out = bits(tensor)
    out[-1] = of_the_pass_before(trace, i, tensor)[-1]
    return out


KINDS: dict[str, tuple[Damage, str]] = {
    "4-ulp-up": (ulps_up(4), "the largest element is 4 units in the last place further from zero"),
    "1-ulp-everywhere": (lambda _, __, tensor: bits(tensor) + 1,
                         "every element is 1 unit in the last place further from zero"),
    "4096-ulp-up": (ulps_up(4096), "the largest fp32 is 4096 units in the last place too large"),
    "plus-1": (with_value(lambda x: x + 1), "1 is added to one element"),
    "nan": (with_value(lambda _: np.nan), "one element is NaN, and nothing after it is"),
    "inf": (with_value(lambda _: np.inf), "one element is Inf, and nothing after it is"),
    "sign": (with_value(lambda x: -x), "one element has the other sign"),
    "rows-swapped": (rows_swapped, "two rows are each other's"),
    "part-zeroed": (first_part_zeroed, "a head, or some columns, are zero"),
    "columns-shifted": (columns_shifted, "every column is the one before it"),
    "of-another-layer": (of_another_layer, "the tensor is that of the layer before"),
    "stale": (of_the_pass_before, "the tensor is that of the pass before"),
    "stale-row": (one_row_of_the_pass_before, "one row is that of the pass before"),
    "doubled": (doubled, "every element is twice what it should be"),
    "coarse": (coarse, "half of each mantissa's digits are dropped"),
    "heads-rolled": (heads_rolled, "every head is the one before it"),
    "halves-swapped": (halves_swapped, "the halves of each row are swapped"),
}
QUICK = {"4-ulp-up@attn.q", "nan@attn.v", "rows-swapped@logits", "part-zeroed@attn.out",
         "4-ulp-up@mlp.router"}
HEADS_ALONE = {"heads-rolled": HEAD_POINTS, "halves-swapped": ["attn.q_rope", "attn.k_rope"]}
WIDE_ALONE = "4096-ulp-up"  # what 4 are to bf16, and far from what fp32 sums may lose
EXACT_POINTS = ["embed", "attn.residual", "mlp.residual"]


def register(base: str, points: list[str], kinds: list[str]) -> None:
    for kind in kinds:
        damage, why = KINDS[kind]
        for point in points:
            if point not in HEADS_ALONE.get(kind, points):
                continue
            if kind == "of-another-layer" and point in MODEL_POINTS:
                continue
            name = f"{kind}@{point}"
            add(name, base, DIVERGED, why, damaged(point, damage),
                name in QUICK and base in ("greedy", "moe"))


register("greedy", GREEDY_POINTS, [kind for kind in KINDS if kind != WIDE_ALONE])
register("moe", EXPERT_POINTS,
         [kind for kind in KINDS if kind not in HEADS_ALONE and kind != WIDE_ALONE])
register("fp16", GREEDY_POINTS, ["4-ulp-up", "coarse"])
register("fp32", EXACT_POINTS, ["4-ulp-up"])
register("fp32", GREEDY_POINTS, [WIDE_ALONE])
register("fp32", [point for point in GREEDY_POINTS if point != "embed"], ["coarse"])
register("qwen2", ["attn.q", "attn.k", "attn.v", "attn.q_rope", "attn.k_rope"],
         ["4-ulp-up", "part-zeroed"])


def repeat_of(trace: Trace) -> tuple[int, Pass]:
    i = next(i for i in range(len(trace.passes)) if is_repeat(trace, i))
    return i, trace.passes[i]


@edit("greedy", expect=DIVERGED, quick=True)
def layers_swapped(trace: Trace) -> Place:
    """Every tensor of layer 1 is that of layer 2 in one pass, and the other way round."""
    _, one = repeat_of(trace)
    for tensor in [t for t in one.tensors if t.layer == 1]:
        twin = one.find(tensor.point, 2, tensor.rows[0][0])
        tensor.bits, twin.bits = twin.bits, tensor.bits
        tensor.digest, twin.digest = twin.digest, tensor.digest
        tensor.row_xxh3, twin.row_xxh3 = twin.row_xxh3, tensor.row_xxh3
    return Place(one.number, 1, "attn.norm")


@edit("greedy", expect=DIVERGED)
def layer_skipped(trace: Trace) -> Place:
    """Layer 3 hands on what it was given: its residual is that of layer 2, in one pass."""
    _, one = repeat_of(trace)
    one.find("mlp.residual", 3).put_bits(bits(one.find("mlp.residual", 2)))
    return Place(one.number, 3, "mlp.residual")


@edit("greedy", expect=DIVERGED)
def whole_pass_stale(trace: Trace) -> Place:
    """Every tensor of a pass but attn.kv is that of the pass before, as an engine that replays a
    graph with old inputs would make it."""
    i, one = repeat_of(trace)
    for tensor, old in zip(one.tensors, trace.passes[i - 1].tensors, strict=True):
        if not tensor.is_cache:
            tensor.put_bits(bits(old))
    for layer in range(trace.layers):
        trace.spread_cache(i, layer)
    one.refresh_best()
    return Place(one.number, -1, "embed")


@edit("greedy", "moe", expect=DIVERGED)
def minus_zero_in_an_exact_class(trace: Trace) -> Place:
    """A residual of 0.0 is -0.0, and a residual is held to be exact bit for bit."""
    for one in trace.passes:
        for tensor in one.tensors:
            if tensor.point.endswith("residual") and (bits(tensor) == 0).any():
                out = bits(tensor)
                out[out == 0] = 0x8000
                tensor.put_bits(out)
                return Place(one.number, tensor.layer, tensor.point)
    raise DoesNotFit("no residual is 0")


@edit("moe", expect=DIVERGED, quick=True)
def another_expert(trace: Trace) -> Place:
    """The router's second expert is one that it did not choose."""
    _, one = repeat_of(trace)
    layer = layer_of(trace, "mlp.experts")
    experts, many = one.find("mlp.experts", layer), one.find("mlp.router", layer).shape[1]
    out = bits(experts)
    out[0, 1] = next(e for e in range(many) if e not in out[0])
    experts.put_bits(out)
    return Place(one.number, layer, "mlp.experts")


@edit("moe", expect=DIVERGED)
def an_expert_twice(trace: Trace) -> Place:
    """A token's two experts are the same one."""
    _, one = repeat_of(trace)
    experts = one.find("mlp.experts", 1)
    out = bits(experts)
    out[:, 1] = out[:, 0]
    experts.put_bits(out)
    return Place(one.number, 1, "mlp.experts")


@edit("moe", expect=DIVERGED)
def an_expert_that_is_none(trace: Trace) -> Place:
    """The number of an expert is beyond those of the model."""
    _, one = repeat_of(trace)
    experts = one.find("mlp.experts", 1)
    out = bits(experts)
    out[0, 0] = 1 << 20
    experts.put_bits(out)
    return Place(one.number, 1, "mlp.experts")


@edit("moe", expect=None)
def experts_in_another_order(trace: Trace) -> None:
    """The choices of each token are in another order, throughout: the same sum, and points.h
    calls the k largest a set as much as a list."""
    for one in trace.passes:
        for tensor in one.tensors:
            if tensor.axes.startswith("token, choice"):
                tensor.put_bits(bits(tensor)[:, ::-1])


def cache_edit(name: str, why: str, change: Callable[[Trace, int, Tensor], None],
               expect: int = DIVERGED, quick: bool = False) -> None:
    """An edit of what one request reads of the cache in one layer of one pass."""
    def applied(trace: Trace) -> Place:
        i, one = repeat_of(trace)
        change(trace, i, one.find("attn.kv", 2, one.rows[0].request))
        return Place(one.number, 2, "attn.kv")
    add(name, "greedy", expect, why, applied, quick)


def put_row(cache: Tensor, row: int, value: int) -> None:
    cache.put_hashes([value if i == row else old for i, old in enumerate(cache.row_xxh3)])


def of_another_request(trace: Trace, i: int, cache: Tensor) -> None:
    other = trace.passes[i].find("attn.kv", 2, trace.passes[i].rows[1].request)
    common = min(len(other.rows), len(cache.rows))
    cache.put_hashes(other.row_xxh3[:common] + cache.row_xxh3[common:])


def without_last(_: Trace, __: int, cache: Tensor) -> None:
    cache.take(range(len(cache.rows) - 1))


def without_first(_: Trace, __: int, cache: Tensor) -> None:
    cache.take(range(1, len(cache.rows)))


def with_a_row_more(_: Trace, __: int, cache: Tensor) -> None:
    cache.rows = [*cache.rows, (cache.rows[-1][0], cache.rows[-1][1] + 1)]
    cache.put_hashes([*cache.row_xxh3, cache.row_xxh3[-1]])


def without_row_hashes(_: Trace, __: int, cache: Tensor) -> None:
    cache.row_xxh3 = []


def with_another_hash(_: Trace, __: int, cache: Tensor) -> None:
    cache.digest.xxh3 ^= 1


cache_edit("kv-row-other", "one position of the cache is not what was written there",
           lambda _, __, cache: put_row(cache, 1, cache.row_xxh3[1] ^ 1), quick=True)
cache_edit("kv-last-row-stale", "the newest position of the cache is that of the one before",
           lambda _, __, cache: put_row(cache, -1 + len(cache.rows), cache.row_xxh3[-2]))
cache_edit("kv-rows-swapped", "two positions of the cache are each other's",
           lambda _, __, cache: cache.put_hashes(
               [cache.row_xxh3[1], cache.row_xxh3[0], *cache.row_xxh3[2:]]))
cache_edit("kv-of-another-request", "a decode pass reads the K/V rows of another request",
           of_another_request, quick=True)
cache_edit("kv-of-another-layer", "a layer reads the cache of the layer before",
           lambda trace, i, cache: cache.put_hashes(
               trace.passes[i].find("attn.kv", 1, cache.rows[0][0]).row_xxh3))
cache_edit("kv-without-its-last", "attention reads no K/V of the token itself", without_last)
cache_edit("kv-without-its-first", "attention reads all but position 0", without_first)
cache_edit("kv-with-a-row-too-many", "attention reads a position that is not computed yet",
           with_a_row_more)
cache_edit("kv-row-hashes-gone", """of a cache without bytes and without the hashes of its
           positions nothing can be said""", without_row_hashes, DOUBT)
cache_edit("kv-hash-of-other-rows", "the hash of a cache is not that of its rows' hashes",
           with_another_hash, DOUBT)


@edit("greedy", expect=DIVERGED)
def kv_row_other_from_the_write_on(trace: Trace) -> Place:
    """What one position of the cache is, in one layer, was never what its token's K and V are."""
    first = trace.passes[0]
    for one in trace.passes:
        for cache in one.tensors:
            if cache.is_cache and cache.layer == 2 and cache.rows[0] == (0, 0):
                put_row(cache, 1, cache.row_xxh3[1] ^ 1)
    return Place(first.number, 2, "attn.kv")


@edit("greedy", expect=DIVERGED)
def kv_there_twice(trace: Trace) -> Place:
    """What a request reads of the cache is there twice, and the second time it is other."""
    _, one = repeat_of(trace)
    cache = one.find("attn.kv", 2, one.rows[0].request)
    twin = clone_tensor(cache)
    put_row(twin, 1, twin.row_xxh3[0])
    one.tensors.insert(one.tensors.index(cache) + 1, twin)
    return Place(one.number, 2, "attn.kv")


def keep_cache(trace: Trace) -> None:
    """Puts the bytes of every cache into the trace: those that attn.k_rope and attn.v wrote."""
    written: dict[tuple[int, int, int], np.ndarray] = {}
    for one in trace.passes:
        for layer in range(trace.layers):
            k, v = one.find("attn.k_rope", layer), one.find("attn.v", layer)
            for label, *pair in zip(k.rows, bits(k), bits(v), strict=True):
                written[layer, *label] = np.stack(pair)
        for cache in one.tensors:
            if cache.is_cache:
                cache.put_bits(np.stack([written[cache.layer, *label] for label in cache.rows]))


@edit("greedy", expect=DIVERGED)
def kept_cache_other(trace: Trace) -> Place:
    """The bytes of the cache are kept, and of one position they are not what was written."""
    keep_cache(trace)
    i, one = repeat_of(trace)
    cache = one.find("attn.kv", 2, one.rows[0].request)
    wants(len(cache.rows) > 2, "a cache of several positions")
    values = values_of(bits(cache), cache.dtype)
    values[1] += 1
    cache.put(values)
    return Place(trace.passes[i].number, 2, "attn.kv")
