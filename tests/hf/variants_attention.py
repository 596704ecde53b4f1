"""Other right ways to compute attention, and experts."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import patches
from patches import Patch
from lockstep.patches import replaced
from variant import Variant, declared

Tensor = torch.Tensor


def attending(name: str, story: str, rounding: str, function: Callable) -> Variant:
    """function(q, k, v, scale) in the place of attention."""
    def patch(model: nn.Module) -> Patch:
        return patches.attention(
            model, range(len(model.model.layers)),
            lambda _inner, _module, q, k, v, _mask, scaling, **_options:
            function(q, k, v, scaling))
    return Variant(name, story, patch, declared("attn.out", rounding), attention=("sdpa",))


def exp2_softmax(scores: Tensor) -> Tensor:
    scores = scores * 1.4426950408889634
    powers = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def without_maximum(scores: Tensor) -> Tensor:
    powers = scores.exp()
    return powers / powers.sum(-1, keepdim=True)


def in_blocks(q: Tensor, k: Tensor, v: Tensor, scale: float, size: int,
              keep: torch.dtype) -> tuple[Tensor, None]:
    """Online softmax over blocks of keys; `keep` is the type of a block's probabilities.

    They are not yet normalised when they are rounded, as in FlashAttention.
    """
    groups = q.shape[1] // k.shape[1]
    keys, values = (t.float().repeat_interleave(groups, 1) for t in (k, v))
    allowed, out = patches.causal(q, k), torch.zeros(q.shape)
    most, total = torch.full((*q.shape[:3], 1), -1e30), torch.zeros(*q.shape[:3], 1)
    for first in range(0, k.shape[2], size):
        part = slice(first, first + size)
        scores = (q.float() @ keys[:, :, part].transpose(2, 3) * scale)
        scores = scores.masked_fill(~allowed[:, part], -torch.inf)
        now = torch.maximum(most, scores.amax(-1, keepdim=True))
        powers, fade = (scores - now).exp(), (most - now).exp()
        total = total * fade + powers.sum(-1, keepdim=True)
        out = out * fade + powers.to(keep).float() @ values[:, :, part]
        most = now
    return (out / total).to(q.dtype).transpose(1, 2).contiguous(), None


def split_kv(q: Tensor, k: Tensor, v: Tensor, scale: float,
             keep: torch.dtype = torch.float32) -> tuple[Tensor, None]:
    """Flash decoding: two halves of the keys, merged by their sums of exponentials.

    `keep` is the type of a half before it is merged: FlashInfer's is that of the output.
    """
    groups = q.shape[1] // k.shape[1]
    keys, values = (t.float().repeat_interleave(groups, 1) for t in (k, v))
    allowed, parts, sums = patches.causal(q, k), [], []
    middle = max(1, k.shape[2] // 2)
    for part in (slice(0, middle), slice(middle, None)):
        scores = q.float() @ keys[:, :, part].transpose(2, 3) * scale
        scores = scores.masked_fill(~allowed[:, part], -1e30)
        if scores.shape[-1]:
            parts.append((torch.softmax(scores, -1) @ values[:, :, part]).to(keep).float())
            sums.append(torch.logsumexp(scores, -1, keepdim=True))
    shares = torch.softmax(torch.cat(sums, -1), -1).split(1, -1)
    made = sum(share * part for share, part in zip(shares, parts))
    return made.to(q.dtype).transpose(1, 2).contiguous(), None


def in_fp64(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, None]:
    groups = q.shape[1] // k.shape[1]
    keys, values = (t.double().repeat_interleave(groups, 1) for t in (k, v))
    scores = (q.double() @ keys.transpose(2, 3) * scale)
    scores = scores.masked_fill(~patches.causal(q, k), -torch.inf)
    made = torch.softmax(scores, -1) @ values
    return made.to(q.dtype).transpose(1, 2).contiguous(), None


def rounded_probabilities(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, None]:
    """Scores in fp32; probabilities are normalised and then rounded."""
    return patches.attend(q, k, v, scale,
                          weigh=lambda scores: torch.softmax(scores, -1).to(q.dtype).float())


def plainly(weigh: Callable[[Tensor], Tensor] | None = None) -> Callable:
    return lambda q, k, v, scale: patches.attend(q, k, v, scale, weigh=weigh)


def finite_mask(model: nn.Module) -> Patch:
    """-10000 for what is hidden, as models before transformers 4.20 had it."""
    def instead(inner, module, q, k, v, _mask, **options):
        mask = patches.mask_of(module, q, patches.causal(q, k), -1e4)
        return inner(module, q, k, v, mask, **options)
    return patches.attention(model, range(len(model.model.layers)), instead)


def scaled_q(model: nn.Module) -> Patch:
    """q * scale is rounded before the product, as in BART and Whisper."""
    return patches.attention(
        model, range(len(model.model.layers)),
        lambda inner, module, q, k, v, mask, scaling, **options:
        inner(module, q * scaling, k, v, mask, scaling=1.0, **options))


ATTENTION = [
    Variant("sdpa-math", "PyTorch's plain backend", lambda _model: sdpa_kernel(SDPBackend.MATH),
            declared("attn.out", "fused"), attention=("sdpa",)),
    Variant("sdpa-flash", "PyTorch's flash backend alone",
            lambda _model: sdpa_kernel(SDPBackend.FLASH_ATTENTION), attention=("sdpa",)),
    attending("attention-fp32", "fp32, rounded once", "fused", plainly()),
    attending("attention-fp64", "fp64, rounded once", "fused", in_fp64),
    attending("attention-exp2", "softmax by powers of 2", "fused", plainly(exp2_softmax)),
    attending("attention-no-maximum", "softmax without its maximum", "fused",
              plainly(without_maximum)),
    attending("attention-online", "blocks of 16 keys in fp32", "fused",
              lambda q, k, v, scale: in_blocks(q, k, v, scale, 16, torch.float32)),
    attending("attention-flash", "blocks of 32 keys, their probabilities rounded", "hf",
              lambda q, k, v, scale: in_blocks(q, k, v, scale, 32, q.dtype)),
    attending("attention-split-kv", "two halves merged", "fused", split_kv),
    attending("attention-split-kv-rounded", "two halves rounded and merged", "hf",
              lambda q, k, v, scale: split_kv(q, k, v, scale, q.dtype)),
    attending("attention-rounded-p", "scores in fp32, probabilities rounded", "hf",
              rounded_probabilities),
    Variant("mask-finite", "-10000 hides a key", finite_mask),
    Variant("scale-on-q", "q * scale rounded first", scaled_q,
            declared("attn.out", "query_rounded"), attention=("sdpa",)),
    Variant("scale-on-q-eager", "the same, and scores and probabilities rounded", scaled_q,
            declared("attn.out", "eager_query_rounded"), attention=("eager",)),
]


def wide_combine(model: nn.Module) -> Patch:
    """The experts' parts are weighed and added in fp32, rounded once."""
    def bound(module: nn.Module) -> Callable:
        def instead(x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
            total = torch.zeros(x.shape, dtype=torch.float32)
            for expert in chosen.unique().tolist():
                choice, token = torch.where((chosen == expert).T)
                both = nn.functional.linear(x[token], module.gate_up_proj[expert])
                gate, up = both.chunk(2, dim=-1)
                part = nn.functional.linear(module.act_fn(gate) * up, module.down_proj[expert])
                total.index_add_(0, token, part.float() * shares[token, choice, None].float())
            return total.to(x.dtype)
        return instead
    return patches.together(
        replaced(module, "forward", bound(module))
        for module in (block.mlp.experts for block in model.model.layers))


def chosen_first(model: nn.Module) -> Patch:
    """Softmax over the chosen logits alone, which is the same when weights are normalised."""
    def instead(y: tuple, _x: Tensor) -> tuple:
        logits, _, chosen = y
        return logits, torch.softmax(logits.gather(1, chosen).float(), -1).to(logits.dtype), chosen
    return patches.output([block.mlp.gate for block in model.model.layers], instead)


EXPERTS = [
    Variant("experts-combined-once", "parts added in fp32, rounded once", wide_combine,
            declared("mlp.combine", "fused"), needs=frozenset(["experts"])),
    Variant("experts-chosen-first", "softmax of the chosen logits", chosen_first,
            needs=frozenset(["experts"])),
]

VARIANTS = ATTENTION + EXPERTS
