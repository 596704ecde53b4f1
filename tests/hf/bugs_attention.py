"""Bugs of attention and of the cache that it reads."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import patches
from bug import Bug, bug
from lockstep.patches import replaced

Tensor = torch.Tensor


def masked(name: str, story: str, function: Callable[[Tensor], Tensor], *needs: str,
           everywhere: bool = False) -> Bug:
    """function(allowed) of which keys each row may see; [row, key]."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        def instead(inner, module, q, k, v, _mask, **options):
            allowed = function(patches.causal(q, k))
            return inner(module, q, k, v, patches.mask_of(module, q, allowed), **options)
        return patches.attention(model, layers, instead)
    return Bug(name, "attn.out", apply, story, frozenset(needs), everywhere)


def ahead(allowed: Tensor) -> Tensor:
    """Each row sees one more key, where there is one."""
    return allowed | torch.cat((allowed[:, :1], allowed[:, :-1]), 1)


def not_itself(allowed: Tensor) -> Tensor:
    """Each row sees the keys before its own alone; the first sees itself."""
    rows, keys = allowed.shape
    return allowed & (~torch.eye(keys, dtype=torch.bool)[keys - rows:] | (torch.arange(keys) == 0))


def window(allowed: Tensor, size: int) -> Tensor:
    rows, keys = allowed.shape
    distance = torch.arange(keys - rows, keys)[:, None] - torch.arange(keys)
    return allowed & (distance < size)


def without_last_in_decode(allowed: Tensor) -> Tensor:
    if allowed.shape[0] == 1:
        allowed = allowed.clone()
        allowed[:, -1] = False
    return allowed


def without_first(allowed: Tensor) -> Tensor:
    """No row but the first sees the key of position 0, which takes much of the weight."""
    allowed = allowed.clone()
    first_row = 1 if allowed.shape[0] == allowed.shape[1] else 0
    allowed[first_row:, 0] = False
    return allowed


def upper_left(allowed: Tensor) -> Tensor:
    """PyTorch's is_causal in a prefill over a longer cache: aligned with the first key."""
    return torch.ones_like(allowed).tril() if allowed.shape[0] > 1 else allowed


def one_page_lost(allowed: Tensor) -> Tensor:
    """In decode, keys 16 to 31 are read by no row."""
    if allowed.shape[0] == 1 and allowed.shape[1] > 32:
        allowed = allowed.clone()
        allowed[:, 16:32] = False
    return allowed


MASKS = [
    masked("mask-one-ahead", "each row sees the next key too", ahead),
    masked("mask-not-itself", "each row sees only what is before it", not_itself),
    masked("mask-none", "prefill without a causal mask", torch.ones_like, everywhere=True),
    masked("mask-window", "a sliding window of 32 that the checkpoint has not",
           lambda allowed: window(allowed, 32)),
    masked("mask-window-of-all-but-the-oldest", "a window one key too short, in decode",
           lambda allowed: window(allowed, allowed.shape[1] - 1)),
    masked("mask-last-key-in-decode", "the softmax ends a key early", without_last_in_decode),
    masked("mask-first-key", "the key of position 0 is skipped", without_first),
    masked("mask-upper-left", "is_causal over a longer cache", upper_left, "chunks",
           everywhere=True),
    masked("mask-one-page", "a page of 16 keys is not read in decode", one_page_lost),
]


@bug("attn.out", "hidden keys weigh e^-8 and not 0")
def mask_too_weak(model, layers):
    def instead(_inner, _module, q, k, v, _mask, scaling, **_options):
        allowed = patches.causal(q, k)
        return patches.attend(q, k, v, scaling, torch.ones_like(allowed),
                              lambda scores: torch.softmax(scores - 8.0 * ~allowed, -1))
    return patches.attention(model, layers, instead)


def scaled(name: str, story: str, factor: Callable[[int], float], everywhere: bool = False) -> Bug:
    """The scores times factor(head_dim), besides the right scale."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        def instead(inner, module, q, k, v, mask, scaling, **options):
            return inner(module, q, k, v, mask, scaling=scaling * factor(module.head_dim),
                         **options)
        return patches.attention(model, layers, instead)
    return Bug(name, "attn.out", apply, story, everywhere=everywhere)


SCALES = [
    scaled("scale-missing", "scores without 1 / sqrt(dim)", lambda dim: dim ** 0.5),
    scaled("scale-twice", "scores divided by dim", lambda dim: dim ** -0.5, everywhere=True),
    scaled("scale-of-padded-dim", "1 / sqrt(2 dim)", lambda _dim: 0.5 ** 0.5),
    scaled("scale-in-e4m3", "the scale was rounded to 4 bits", lambda _dim: 1.0625),
    scaled("scale-one-percent", "the scale is 1 % too large", lambda _dim: 1.01),
]


@bug("attn.out", "head h reads kv head h % n and not h / group", "gqa")
def gqa_interleaved(model, layers):
    def instead(inner, module, q, k, v, mask, **options):
        heads = torch.arange(q.shape[1]) % k.shape[1]
        with replaced(module, "num_key_value_groups", 1):
            return inner(module, q, k[:, heads], v[:, heads], mask, **options)
    return patches.attention(model, layers, instead)


@bug("attn.out", "the last head reads kv head 0", "gqa")
def gqa_last_head(model, layers):
    def instead(inner, module, q, k, v, mask, **options):
        heads = torch.arange(q.shape[1]) // module.num_key_value_groups
        heads[-1] = 0
        with replaced(module, "num_key_value_groups", 1):
            return inner(module, q, k[:, heads], v[:, heads], mask, **options)
    return patches.attention(model, layers, instead)


@bug("attn.out", "K is read in the place of V")
def attention_k_for_v(model, layers):
    return patches.attention(model, layers, lambda inner, module, q, k, _v, mask, **options:
                             inner(module, q, k, k, mask, **options))


def after_attention(name: str, story: str, function: Callable[[Tensor], Tensor]) -> Bug:
    """function(out) of what attention makes: [batch, token, head, dim]."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        def instead(inner, module, q, k, v, mask, **options):
            return function(inner(module, q, k, v, mask, **options)[0]), None
        return patches.attention(model, layers, instead)
    return Bug(name, "attn.out", apply, story)


def dead_head(out: Tensor) -> Tensor:
    out = out.clone()
    out[:, :, 1] = 0
    return out


def swapped_heads(out: Tensor) -> Tensor:
    return out[:, :, [1, 0, *range(2, out.shape[2])]]


def last_row_stale(out: Tensor) -> Tensor:
    """In prefill the last row, of a tile that is not full, has what the row before has."""
    out = out.clone()
    if out.shape[1] > 1:
        out[:, -1] = out[:, -2]
    return out


AFTER = [
    after_attention("head-dead", "head 1 is left at zero", dead_head),
    after_attention("heads-swapped", "heads 0 and 1 change places", swapped_heads),
    after_attention("attention-last-row-stale", "the last row of prefill repeats", last_row_stale),
]


def weighing(name: str, story: str, weigh: Callable[[Tensor], Tensor],
             decode_only: bool = False) -> Bug:
    """weigh(scores) in the place of softmax; the rest is in fp32."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        def instead(inner, module, q, k, v, mask, scaling, **options):
            if decode_only and q.shape[2] > 1:
                return inner(module, q, k, v, mask, scaling=scaling, **options)
            return patches.attend(q, k, v, scaling, weigh=weigh)
        return patches.attention(model, layers, instead)
    return Bug(name, "attn.out", apply, story)


def softmax_in_bf16(scores: Tensor) -> Tensor:
    """Difference, exp, sum and quotient are each rounded to bf16."""
    low = scores.bfloat16()
    powers = (low - low.amax(-1, keepdim=True)).exp()
    total = torch.zeros_like(powers[..., :1])
    for part in powers.split(16, -1):
        total = total + part.sum(-1, keepdim=True)
    return (powers / total).float()


def softmax_in_e4m3(scores: Tensor) -> Tensor:
    return (torch.softmax(scores, -1) * 256).to(torch.float8_e4m3fn).float() / 256


def split_without_rescale(scores: Tensor) -> Tensor:
    """Two halves of the keys, each with its own softmax, are merged with equal weights."""
    return torch.cat([torch.softmax(part, -1) / 2 for part in scores.tensor_split(2, -1)], -1)


def softmax_plus_one(scores: Tensor) -> Tensor:
    """An attention sink that the checkpoint has not: one more key of score 0."""
    zero = torch.zeros_like(scores[..., :1])
    return torch.softmax(torch.cat((scores, zero), -1), -1)[..., :-1]


WEIGHTS = [
    weighing("softmax-in-bf16", "difference, exp, sum and quotient rounded", softmax_in_bf16),
    weighing("softmax-in-e4m3", "probabilities as 8-bit floats", softmax_in_e4m3),
    weighing("softmax-split-not-rescaled", "flash decoding merges halves as equals",
             split_without_rescale, decode_only=True),
    weighing("softmax-plus-one", "a sink that the checkpoint has not", softmax_plus_one),
    weighing("softmax-softcap", "Gemma 2's cap of 50 on scores",
             lambda scores: torch.softmax(50 * torch.tanh(scores / 50), -1)),
]


def cached(name: str, story: str, function: Callable, *needs: str) -> Bug:
    """function(keys, values, new) changes what the cache gives back."""
    def apply(_model: nn.Module, layers: list[int]) -> patches.Patch:
        return patches.cache(layers, function)
    return Bug(name, "attn.kv", apply, story, frozenset(needs))


def last_key_stale(keys: Tensor, values: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """In decode the new key is read before it is written."""
    if new == 1:
        keys = keys.clone()
        keys[:, :, -1] = keys[:, :, -2]
    return keys, values


def previous_overwritten(keys: Tensor, values: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """A step of decode writes its slot and the one before, for good."""
    if new == 1:
        keys[:, :, -2] = keys[:, :, -1]
        values[:, :, -2] = values[:, :, -1]
    return keys, values


def values_late(keys: Tensor, values: Tensor, _new: int) -> tuple[Tensor, Tensor]:
    return keys, values.roll(1, 2)


def pages_swapped(keys: Tensor, values: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """In decode, positions 16 to 31 and 32 to 47 are read in each other's place."""
    if new > 1 or keys.shape[2] < 48:
        return keys, values
    order = torch.arange(keys.shape[2])
    order[16:48] = order[16:48].roll(16)
    return keys[:, :, order], values[:, :, order]


def in_e4m3(keys: Tensor, values: Tensor, _new: int) -> tuple[Tensor, Tensor]:
    return tuple(t.to(torch.float8_e4m3fn).to(t.dtype) for t in (keys, values))


def one_element(keys: Tensor, values: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """One number of the cache changes in its last bit in the second step of decode."""
    if new == 1:
        values[0, 0, 5, 7] = patches.nudged(values[0, 0, 5, 7:8], 1)[0]
    return keys, values


CACHES = [
    cached("cache-last-key-stale", "read before it is written", last_key_stale),
    cached("cache-previous-overwritten", "decode writes one slot too many", previous_overwritten),
    cached("cache-values-late", "V of the position before", values_late),
    cached("cache-kv-heads-swapped", "V of the other kv head", lambda keys, values, _new:
           (keys, values.flip(1)), "gqa"),
    cached("cache-pages-swapped", "two pages in each other's place", pages_swapped),
    cached("cache-in-e4m3", "an 8-bit cache without scales", in_e4m3),
    cached("cache-in-bf16", "the cache of an fp32 run is bf16", lambda keys, values, _new:
           (keys.bfloat16().float(), values.bfloat16().float()), "fp32"),
    cached("cache-one-ulp", "one number moves by its last bit a step", one_element),
]

BUGS = MASKS + [mask_too_weak] + SCALES + [
    gqa_interleaved, gqa_last_head, attention_k_for_v] + AFTER + WEIGHTS + CACHES
