"""Bugs of linear ops, of the MLP, of residual additions, and of both ends of the model."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import linear

import capture
import patches
from bug import Bug, bug
from lockstep.patches import replaced

Tensor = torch.Tensor


def computed(name: str, point: str, story: str, function: Callable[[nn.Module, Tensor], Tensor],
             *needs: str, everywhere: bool = False) -> Bug:
    """function(module, x) in the place of the linear op."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        return patches.forward(patches.modules_of(model, layers, point), function)
    return Bug(name, point, apply, story, frozenset(needs), everywhere)


def weighted(name: str, point: str, story: str, function: Callable[[Tensor], Tensor],
             *needs: str, everywhere: bool = False) -> Bug:
    """function(weight) in the place of the weight."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        return patches.weights(patches.modules_of(model, layers, point), function)
    return Bug(name, point, apply, story, frozenset(needs), everywhere)


def made(name: str, point: str, story: str, function: Callable[[Tensor], Tensor], *needs: str,
         everywhere: bool = False) -> Bug:
    """function(y) of what the module returns."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        return patches.output(patches.modules_of(model, layers, point),
                              lambda y, _x: function(y))
    return Bug(name, point, apply, story, frozenset(needs), everywhere)


def bf16_blocks(module: nn.Module, x: Tensor, dtype: torch.dtype = torch.bfloat16,
                size: int = 32) -> Tensor:
    """The sum so far is kept in few bits after each block of products."""
    total = torch.zeros((), dtype=dtype)
    for part, weight in zip(x.float().split(size, -1), module.weight.float().split(size, -1)):
        total = (total.float() + linear(part, weight)).to(dtype)
    return total.to(x.dtype) if module.bias is None else (total + module.bias).to(x.dtype)


def toward_zero(module: nn.Module, x: Tensor) -> Tensor:
    """The sum is cut off, not rounded, where it is stored."""
    bias = None if module.bias is None else module.bias.double()
    wide = linear(x.double(), module.weight.double(), bias)
    near = wide.to(x.dtype)
    return torch.where(near.double().abs() > wide.abs(), patches.nudged(near, -1), near)


def bias_rounded_apart(module: nn.Module, x: Tensor) -> Tensor:
    """The product goes to e5m2 between the matrix product and the bias."""
    product = linear(x, module.weight).to(torch.float8_e5m2).to(x.dtype)
    return product if module.bias is None else product + module.bias


def without_tail(module: nn.Module, x: Tensor) -> Tensor:
    """The last 16 products of each sum are lost."""
    return linear(x[..., :-16], module.weight[:, :-16], module.bias)


def bf16_operands(module: nn.Module, x: Tensor) -> Tensor:
    return linear(x.bfloat16().float(), module.weight, module.bias)


def tf32(tensor: Tensor) -> Tensor:
    """Rounded to 10 bits behind the point."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def tf32_operands(module: nn.Module, x: Tensor) -> Tensor:
    return linear(tf32(x), tf32(module.weight.detach()), module.bias)


def e4m3(weight: Tensor) -> Tensor:
    scale = weight.float().abs().amax() / 448
    return (weight.float() / scale).to(torch.float8_e4m3fn).float() * scale


def int8(weight: Tensor) -> Tensor:
    scale = weight.float().abs().amax(-1, keepdim=True) / 127
    return (weight.float() / scale).round() * scale


def sign_of_one(weight: Tensor) -> Tensor:
    weight[3, 5] *= -1
    return weight


def zero_row(weight: Tensor) -> Tensor:
    weight[7] = 0
    return weight


def interleaved_rows(weight: Tensor) -> Tensor:
    """The rows that conversion from Meta's layout permutes, permuted once more."""
    heads = weight.unflatten(0, (-1, 32))
    return heads.unflatten(1, (-1, 2)).transpose(1, 2).reshape_as(weight)


def stale_channel(y: Tensor) -> Tensor:
    """Output channel 5 has what the token before has."""
    y = y.clone()
    y[:, 1:, 5] = y[:, :-1, 5].clone()
    return y


def last_row_twice(y: Tensor) -> Tensor:
    y = y.clone()
    if y.shape[1] > 1:
        y[:, -1] = y[:, -2]
    return y


LINEARS = [
    computed("q-bias-missing", "attn.q", "the bias is not added",
             lambda module, x: linear(x, module.weight), "bias"),
    computed("v-bias-missing", "attn.v", "the bias is not added",
             lambda module, x: linear(x, module.weight), "bias", everywhere=True),
    computed("k-bias-twice", "attn.k", "the bias is added twice",
             lambda module, x: linear(x, module.weight, module.bias * 2), "bias"),
    weighted("q-transposed", "attn.q", "the weight is transposed", torch.t, "square"),
    weighted("down-rows-shifted", "mlp.down", "each output has its neighbour's weight",
             lambda weight: weight.roll(1, 0)),
    weighted("q-rows-interleaved", "attn.q", "a conversion's permutation done twice",
             interleaved_rows, everywhere=True),
    weighted("up-e4m3", "mlp.up", "a weight of 8-bit floats", e4m3),
    weighted("o-int8", "attn.o", "a weight of 8-bit integers", int8),
    weighted("gate-one-sign", "mlp.gate", "the sign of one weight", sign_of_one),
    weighted("v-row-zero", "attn.v", "one row of the weight was not loaded", zero_row),
    made("up-channel-stale", "mlp.up", "a channel keeps what the token before had",
         stale_channel),
    made("o-last-row-stale", "attn.o", "the last row of a prefill repeats", last_row_twice),
    computed("o-bf16-blocks", "attn.o", "sums kept in bf16 after each 32 products", bf16_blocks),
    computed("down-bf16-blocks", "mlp.down", "sums kept in bf16 after each 32 products",
             bf16_blocks, everywhere=True),
    computed("up-fp16-blocks", "mlp.up", "sums kept in fp16 after each 32 products",
             lambda module, x: bf16_blocks(module, x, torch.float16)),
    computed("gate-toward-zero", "mlp.gate", "cut off at the store", toward_zero,
             "16 bits"),
    computed("v-toward-zero", "attn.v", "cut off at the store", toward_zero, "16 bits",
             everywhere=True),
    computed("k-in-e5m2-before-bias", "attn.k", "the product is kept in 8 bits",
             bias_rounded_apart),
    computed("down-tail-lost", "mlp.down", "the last 16 products are lost", without_tail),
    computed("q-operands-in-bf16", "attn.q", "x of an fp32 run is rounded to bf16", bf16_operands,
             "fp32"),
    computed("up-operands-in-tf32", "mlp.up", "both operands rounded to tf32", tf32_operands,
             "fp32", everywhere=True),
]


@bug("attn.v", "the weight of the next layer")
def v_weight_of_next_layer(model, layers):
    own, other = (patches.modules_of(model, [i + step for i in layers], "attn.v")
                  for step in (0, 1))
    return patches.together(patches.weights([a], lambda _, b=b: b.weight.detach().clone())
                            for a, b in zip(own, other))


def activated(name: str, story: str, function: Callable[[Tensor, Tensor], Tensor],
              everywhere: bool = False) -> Bug:
    """function(gate, up) in the place of silu(gate) * up."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        def instead(module: nn.Module, x: Tensor) -> Tensor:
            return module.down_proj(function(module.gate_proj(x), module.up_proj(x)))
        return patches.forward([model.model.layers[i].mlp for i in layers], instead)
    return Bug(name, "mlp.act", apply, story, frozenset(["dense"]), everywhere)


silu, gelu = nn.functional.silu, nn.functional.gelu
ACTIVATIONS = [
    activated("act-gelu", "GELU for SiLU", lambda gate, up: gelu(gate) * up),
    activated("act-quick", "x sigmoid(1.702 x)",
              lambda gate, up: gate * torch.sigmoid(1.702 * gate) * up),
    activated("act-hardswish", "the piecewise stand-in",
              lambda gate, up: nn.functional.hardswish(gate) * up),
    activated("act-swapped", "silu(up) * gate", lambda gate, up: silu(up) * gate,
              everywhere=True),
    activated("act-clamped", "gate at most 1, as of a limit in the wrong place",
              lambda gate, up: silu(gate.clamp(max=1)) * up),
    activated("act-without-up", "silu(gate) alone", lambda gate, _up: silu(gate)),
    activated("act-sigmoid-in-bf16", "exp, sum and quotient each rounded to bf16",
              lambda gate, up: (gate.bfloat16() / (1 + (-gate.bfloat16()).exp())).to(up.dtype)
              * up),
]


def added(name: str, point: str, story: str, *needs: str, attn: Callable = patches.plain_add,
          mlp: Callable = patches.plain_add, everywhere: bool = False) -> Bug:
    """Other residual additions: see patches.decoder."""
    return Bug(name, point, lambda model, layers: patches.decoder(model, layers, attn, mlp), story,
               frozenset(needs), everywhere)


RESIDUALS = [
    added("attn-residual-missing", "attn.residual", "the stream is not added",
          attn=lambda _x, a, _n: a.clone()),
    added("attn-residual-of-norm", "attn.residual", "what was normed is added",
          attn=lambda _x, a, n: n + a),
    added("attn-residual-twice", "attn.residual", "what attention made is added twice",
          attn=lambda x, a, _n: x + a + a, everywhere=True),
    added("mlp-residual-missing", "mlp.residual", "the stream is not added",
          mlp=lambda _h, m, _x, _n: m.clone()),
    added("mlp-residual-of-layer-input", "mlp.residual", "GPT-J's parallel residual",
          mlp=lambda _h, m, x, _n: x + m),
    added("mlp-residual-scaled", "mlp.residual", "what the MLP made counts 0.99",
          mlp=lambda h, m, _x, _n: h + m * 0.99),
    added("mlp-residual-in-bf16", "mlp.residual", "a stream of bf16 in an fp32 run", "fp32",
          mlp=lambda h, m, _x, _n: (h.bfloat16() + m.bfloat16()).to(h.dtype)),
    added("attn-residual-in-fp16", "attn.residual", "a stream rounded to fp16 and back", "fp32",
          attn=lambda x, a, _n: (x + a).half().to(x.dtype), everywhere=True),
]


@bug("embed", "the id of the next word")
def embed_next_id(model, _layers):
    module = model.model.embed_tokens
    inner = module.forward
    return replaced(module, "forward", lambda ids: inner((ids + 1) % module.num_embeddings))


@bug("token", "the runner-up is taken")
def token_runner_up(_model, _layers):
    return replaced(capture, "greedy",
                    lambda logits: torch.topk(logits.float(), 2).indices[:, 1].to(torch.int32))


@bug("token", "argmax over the last shard of the vocabulary alone")
def token_of_last_shard(_model, _layers):
    def last(logits: Tensor) -> Tensor:
        half = logits.shape[1] // 2
        return (half + logits[:, half:].float().argmax(-1)).to(torch.int32)
    return replaced(capture, "greedy", last)


@bug("logits", "the head reads the row before the last")
def logits_of_row_before(model, _layers):
    norm, seen = model.model.norm, {}
    inner = norm.forward

    def keep(x: Tensor) -> Tensor:
        seen["rows"] = inner(x)
        return seen["rows"]

    def head(_module: nn.Module, x: Tensor) -> Tensor:
        rows = seen["rows"]
        return linear(rows[:, -2:-1] if rows.shape[1] > 1 else x, model.lm_head.weight)

    return patches.together([replaced(norm, "forward", keep),
                             patches.forward([model.lm_head], head)])


def second_shard_late(weight: Tensor) -> Tensor:
    """The second half of the vocabulary has its neighbour's row, as of a shard's first id."""
    half = weight.shape[0] // 2
    return torch.cat((weight[:half], weight[half:].roll(1, 0)))


def one_row(weight: Tensor) -> Tensor:
    weight[11] = weight[12]
    return weight


def head_with(name: str, story: str, function: Callable[[Tensor], Tensor]) -> Bug:
    """function(weight) for the head alone, where its weight is the embedding's too."""
    def apply(model: nn.Module, _layers: list[int]) -> patches.Patch:
        weight = function(model.lm_head.weight.detach().clone()).to(model.dtype)
        return patches.forward([model.lm_head], lambda _module, x: linear(x, weight))
    return Bug(name, "logits", apply, story)


ENDS = [
    embed_next_id, token_runner_up, token_of_last_shard, logits_of_row_before,
    made("embed-scaled", "embed", "Gemma's sqrt(hidden)", lambda y: y * y.shape[-1] ** 0.5),
    made("embed-last-row-stale", "embed", "the last row of a prefill repeats", last_row_twice),
    head_with("head-one-row-stale", "the row of one word is another's", one_row),
    head_with("head-second-shard-late", "a shard of the vocabulary is off by one",
              second_shard_late),
    head_with("head-e4m3", "a head of 8-bit floats", e4m3),
    made("logits-softcap", "logits", "Gemma 2's cap of 30 on logits",
         lambda y: 30 * torch.tanh(y / 30)),
]

BUGS = LINEARS + [v_weight_of_next_layer] + ACTIVATIONS + RESIDUALS + ENDS
