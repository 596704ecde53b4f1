"""Bugs of norms and of RoPE."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import patches
from bug import Bug, bug

Tensor = torch.Tensor


def rms_norm(module: nn.Module, x: Tensor, variance: Tensor | None = None,
             weight: Tensor | None = None) -> Tensor:
    """As transformers has it, but for the variance or the weight."""
    wide = x.to(torch.float32)
    if variance is None:
        variance = wide.pow(2).mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(variance + module.variance_epsilon)
    return (module.weight if weight is None else weight) * wide.to(x.dtype)


def norm(name: str, point: str, story: str, function: Callable[[nn.Module, Tensor], Tensor],
         *needs: str, everywhere: bool = False) -> Bug:
    """function(module, x) in the place of the norm's forward."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        return patches.forward(patches.modules_of(model, layers, point), function)
    return Bug(name, point, apply, story, frozenset(needs), everywhere)


def eps_outside_root(module: nn.Module, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide / (wide.pow(2).mean(-1, keepdim=True).sqrt() + module.variance_epsilon)
    return module.weight * wide.to(x.dtype)


def sum_in_bf16(module: nn.Module, x: Tensor) -> Tensor:
    """Each partial sum of 16 squares is rounded to bf16, and so is the sum so far."""
    squares = x.bfloat16().pow(2).unflatten(-1, (-1, 16))
    total = torch.zeros_like(squares[..., 0, 0])
    for part in squares.unbind(-2):
        total = total + part.sum(-1)
    return rms_norm(module, x, (total / x.shape[-1]).float()[..., None])


def all_in_bf16(module: nn.Module, x: Tensor) -> Tensor:
    low = x.bfloat16()
    variance = low.pow(2).mean(-1, keepdim=True)
    return (module.weight * (low * torch.rsqrt(variance + module.variance_epsilon))).to(x.dtype)


def mean_subtracted(module: nn.Module, x: Tensor) -> Tensor:
    return rms_norm(module, x - x.mean(-1, keepdim=True))


def last_channels_left_out(module: nn.Module, x: Tensor) -> Tensor:
    """The sum ends eight channels before the row does, as of a loop over whole vectors."""
    squares = x.to(torch.float32).pow(2)[..., :-8]
    return rms_norm(module, x, squares.sum(-1, keepdim=True) / x.shape[-1])


def by_n_minus_one(module: nn.Module, x: Tensor) -> Tensor:
    squares = x.to(torch.float32).pow(2).sum(-1, keepdim=True)
    return rms_norm(module, x, squares / (x.shape[-1] - 1))


def row_before(module: nn.Module, x: Tensor) -> Tensor:
    """The last row is scaled by the root mean square of the one before it."""
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    if x.shape[1] > 1:
        variance[:, -1] = variance[:, -2]
    return rms_norm(module, x, variance)


def whole_row(module: nn.Module, x: Tensor) -> Tensor:
    """One root mean square for all heads of a token."""
    return rms_norm(module, x, x.to(torch.float32).pow(2).mean((-1, -2), keepdim=True))


def first_head(module: nn.Module, x: Tensor) -> Tensor:
    """Every head is scaled by the root mean square of head 0."""
    return rms_norm(module, x, x[..., :1, :].to(torch.float32).pow(2).mean(-1, keepdim=True))


def unweighted(module: nn.Module, x: Tensor) -> Tensor:
    return rms_norm(module, x, weight=torch.ones_like(module.weight))


NORMS = [
    norm("norm-eps-outside-root", "attn.norm", "x / (rms + eps)", eps_outside_root,
         everywhere=True),
    norm("norm-sum-in-bf16", "mlp.norm", "partial sums of squares rounded to bf16", sum_in_bf16),
    norm("norm-all-in-bf16", "attn.norm", "the norm under autocast: bf16 throughout", all_in_bf16),
    norm("norm-mean-subtracted", "mlp.norm", "LayerNorm without bias for RMSNorm",
         mean_subtracted),
    norm("norm-last-channels-left-out", "attn.norm", "the sum of squares loses the tail",
         last_channels_left_out),
    norm("norm-by-n-minus-one", "mlp.norm", "the unbiased variance", by_n_minus_one),
    norm("norm-row-before", "mlp.norm", "the last row takes the scale of the row before",
         row_before),
    norm("norm-weight-plus-one", "attn.norm", "Gemma's 1 + weight",
         lambda module, x: rms_norm(module, x, weight=module.weight + 1)),
    norm("q-norm-whole-row", "attn.q_norm", "OLMo's norm over all heads", whole_row, "qk_norm"),
    norm("k-norm-first-head", "attn.k_norm", "each head takes the scale of head 0", first_head,
         "qk_norm"),
    norm("k-norm-unweighted", "attn.k_norm", "the weight is not applied", unweighted, "qk_norm"),
    norm("q-norm-skipped", "attn.q_norm", "Qwen2's attention run with Qwen3's weights",
         lambda _module, x: x.clone(), "qk_norm", everywhere=True),
    norm("final-norm-skipped", "final.norm", "the head reads the stream",
         lambda _module, x: x.clone()),
    norm("final-norm-all-in-bf16", "final.norm", "bf16 throughout", all_in_bf16),
    norm("final-norm-unweighted", "final.norm", "the weight is not applied", unweighted),
]


@bug("attn.norm", "1e-5 for 1e-6, Llama's", everywhere=True)
def norm_eps_1e_5(model, layers):
    return patches.attributes(patches.modules_of(model, layers, "attn.norm"), "variance_epsilon",
                              1e-5)


@bug("attn.k_norm", "1e-3 for 1e-6", "qk_norm")
def k_norm_eps_1e_3(model, layers):
    return patches.attributes(patches.modules_of(model, layers, "attn.k_norm"),
                              "variance_epsilon", 1e-3)


@bug("mlp.norm", "the weight of the layer's other norm")
def norm_weight_of_the_other(model, layers):
    blocks = [model.model.layers[i] for i in layers]
    return patches.together(
        patches.weights([block.post_attention_layernorm],
                        lambda _, b=block: b.input_layernorm.weight.detach().clone())
        for block in blocks)


@bug("attn.norm", "the weight of the layer before")
def norm_weight_of_layer_before(model, layers):
    return patches.together(
        patches.weights(patches.modules_of(model, [i], "attn.norm"),
                        lambda _, i=i: model.model.layers[i - 1].input_layernorm.weight.detach())
        for i in layers)


def frequencies(model: nn.Module, theta: float | None = None) -> Tensor:
    """The inverse frequencies of the model, or those of another base."""
    if theta is None:
        return model.model.rotary_emb.inv_freq
    dim = model.model.layers[0].self_attn.head_dim
    return 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)


def tables(angles: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of [batch, token, dim / 2], as transformers makes them of its angles."""
    both = torch.cat((angles, angles), -1)
    return both.cos().to(dtype), both.sin().to(dtype)


def rope(name: str, story: str, angles: Callable[[nn.Module, Tensor], Tensor],
         everywhere: bool = False) -> Bug:
    """angles(model, positions) in the place of the model's own; positions are [batch, token]."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        def instead(inner, q, k, _cos, _sin, positions):
            return inner(q, k, *tables(angles(model, positions).float(), q.dtype))
        return patches.rope(model, layers, instead)
    return Bug(name, "attn.q_rope", apply, story, everywhere=everywhere)


def turned(positions: Tensor, frequency: Tensor) -> Tensor:
    return positions[..., None].float() * frequency


def next_in_decode(model: nn.Module, positions: Tensor) -> Tensor:
    return turned(positions + (positions.shape[1] == 1), frequencies(model))


def restarted(model: nn.Module, positions: Tensor) -> Tensor:
    """Each call counts from 0, whatever the cache holds."""
    return turned(positions - positions[:, :1], frequencies(model))


def in_bf16(model: nn.Module, positions: Tensor) -> Tensor:
    return positions[..., None].bfloat16() * frequencies(model).bfloat16()


def rounded_frequencies(model: nn.Module, positions: Tensor) -> Tensor:
    return turned(positions, frequencies(model).bfloat16().float())


def last_frequency_missing(model: nn.Module, positions: Tensor) -> Tensor:
    frequency = frequencies(model).clone()
    frequency[frequency.shape[0] // 2] = 0
    return turned(positions, frequency)


ROPES = [
    rope("rope-position-plus-one-in-decode", "the position of the next token", next_in_decode),
    rope("rope-positions-from-one", "positions count from 1",
         lambda model, positions: turned(positions + 1, frequencies(model)), everywhere=True),
    rope("rope-positions-restarted", "each call counts from 0", restarted, everywhere=True),
    rope("rope-positions-clamped", "a table of 64 positions",
         lambda model, positions: turned(positions.clamp(max=63), frequencies(model))),
    rope("rope-theta-10000", "Llama's base",
         lambda model, positions: turned(positions, frequencies(model, 1e4))),
    rope("rope-theta-500000", "Llama 3's base",
         lambda model, positions: turned(positions, frequencies(model, 5e5)), everywhere=True),
    rope("rope-angles-in-bf16", "position * frequency in bf16", in_bf16),
    rope("rope-frequencies-in-bf16", "model.half() rounded the buffer inv_freq",
         rounded_frequencies, everywhere=True),
    rope("rope-one-frequency-missing", "one pair of dims is not turned", last_frequency_missing),
    rope("rope-scaled-by-two", "linear scaling that the checkpoint has not",
         lambda model, positions: turned(positions / 2, frequencies(model))),
]


def interleaved_half(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


@bug("attn.q_rope", "GPT-J's pairs of neighbours")
def rope_interleaved(model, layers):
    def instead(_inner, q, k, cos, sin, _positions):
        half = cos.shape[-1] // 2
        cos, sin = (t[..., :half].repeat_interleave(2, -1)[:, None] for t in (cos, sin))
        return q * cos + interleaved_half(q) * sin, k * cos + interleaved_half(k) * sin
    return patches.rope(model, layers, instead)


@bug("attn.q_rope", "turned the other way")
def rope_sign(model, layers):
    return patches.rope(model, layers,
                        lambda inner, q, k, cos, sin, _: inner(q, k, cos, -sin))


@bug("attn.k_rope", "K goes unturned into the cache")
def rope_q_only(model, layers):
    def instead(inner, q, k, cos, sin, _positions):
        return inner(q, k, cos, sin)[0], k.clone()
    return patches.rope(model, layers, instead)


@bug("attn.q_rope", "only the first half of the dims is turned, as in GPT-NeoX")
def rope_half_dims(model, layers):
    def instead(inner, q, k, cos, sin, _positions):
        half = q.shape[-1] // 2
        cos, sin = (torch.cat((t[..., :half // 2],) * 2, -1) for t in (cos, sin))
        made = inner(q[..., :half], k[..., :half], cos, sin)
        return tuple(torch.cat((new, old[..., half:]), -1) for new, old in zip(made, (q, k)))
    return patches.rope(model, layers, instead)


@bug("attn.q_rope", "q is turned twice")
def rope_twice(model, layers):
    def instead(inner, q, k, cos, sin, _positions):
        once = inner(q, k, cos, sin)
        return inner(once[0], k, cos, sin)[0], once[1]
    return patches.rope(model, layers, instead)


@bug("attn.k_rope", "K of the last kv head takes the position of the token before")
def rope_last_kv_head_late(model, layers):
    def instead(inner, q, k, cos, sin, positions):
        made = inner(q, k, cos, sin)
        late = tables(turned((positions - 1).clamp(min=0), frequencies(model)), q.dtype)
        return made[0], torch.cat((made[1][:, :-1], inner(q, k, *late)[1][:, -1:]), 1)
    return patches.rope(model, layers, instead)


BUGS = NORMS + [norm_eps_1e_5, k_norm_eps_1e_3, norm_weight_of_the_other,
                norm_weight_of_layer_before] + ROPES + [
    rope_interleaved, rope_sign, rope_q_only, rope_half_dims, rope_twice, rope_last_kv_head_late]
