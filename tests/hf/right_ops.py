"""What each op should have made of the inputs that were recorded, in Hugging Face's own arithmetic.

On a run without a bug every result equals the recorded tensor in all bits; of a bug's op, the
difference between the two is what the bug does, and nothing else. For runs of one request.
"""
from __future__ import annotations

import dataclasses
import math

import torch
from torch import nn

from capture import greedy
from lockstep.patches import modeling_of
from trace_file import Pass, Place

Tensor = torch.Tensor

MANTISSA = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}


class RightOps:
    """Computes a place of a pass from the inputs that the passes so far recorded."""

    def __init__(self, model: nn.Module, passes: list[Pass]) -> None:
        self.model, self.passes, self.modeling = model, passes, modeling_of(model)

    def stream(self, run: Pass, layer: int) -> Tensor:
        return run.tensors[(layer - 1, "mlp.residual") if layer else (-1, "embed")]

    @torch.no_grad()
    def right(self, number: int, place: Place) -> Tensor:
        layer, point = place
        run = self.passes[number]
        if layer < 0:
            return self.model_op(run, point)
        if point.startswith("attn."):
            return self.attention_op(number, run, layer, point)
        return self.mlp_op(run, layer, point)

    def model_op(self, run: Pass, point: str) -> Tensor:
        model = self.model.model
        if point == "embed":
            return model.embed_tokens(torch.tensor([[row.token for row in run.rows]]))[0]
        if point == "final.norm":
            return model.norm(self.stream(run, len(model.layers))[None])[0]
        if point == "logits":
            return self.model.lm_head(run.tensors[-1, "final.norm"][None, run.logit_rows])[0]
        return greedy(run.tensors[-1, "logits"])

    def attention_op(self, number: int, run: Pass, layer: int, point: str) -> Tensor:
        block = self.model.model.layers[layer]
        attn = block.self_attn

        def seen(name: str) -> Tensor:
            return run.tensors[layer, name]

        if point == "attn.norm":
            return block.input_layernorm(self.stream(run, layer)[None])[0]
        if point in ("attn.q", "attn.k", "attn.v"):
            made = getattr(attn, point[5:] + "_proj")(seen("attn.norm")[None])[0]
            return made.reshape(len(made), -1, attn.head_dim)
        if point in ("attn.q_norm", "attn.k_norm"):
            return getattr(attn, point[5:])(seen(point.removesuffix("_norm"))[None])[0]
        if point in ("attn.q_rope", "attn.k_rope"):
            return self.rope(run, layer)[point == "attn.k_rope"]
        if point == "attn.kv":
            return self.cache(number, layer)
        if point == "attn.out":
            return self.attend(run, layer)
        if point == "attn.o":
            return attn.o_proj(seen("attn.out").flatten(1)[None])[0]
        return self.stream(run, layer) + seen("attn.o")

    def rope(self, run: Pass, layer: int) -> tuple[Tensor, Tensor]:
        normed = (layer, "attn.q_norm") in run.tensors
        q, k = (run.tensors[layer, f"attn.{name}_norm" if normed else f"attn.{name}"]
                for name in "qk")
        positions = torch.tensor([[row.position for row in run.rows]])
        cos, sin = self.model.model.rotary_emb(q, positions)
        made = self.modeling.apply_rotary_pos_emb(q[None].transpose(1, 2), k[None].transpose(1, 2),
                                                  cos, sin)
        return tuple(tensor.transpose(1, 2)[0] for tensor in made)

    def cache(self, number: int, layer: int) -> Tensor:
        """What all passes so far wrote."""
        return torch.cat([torch.stack([run.tensors[layer, "attn.k_rope"],
                                       run.tensors[layer, "attn.v"]], 1)
                          for run in self.passes[:number + 1]])

    def attend(self, run: Pass, layer: int) -> Tensor:
        attn, config = self.model.model.layers[layer].self_attn, self.model.config
        cache = run.caches[layer, 0]
        q = run.tensors[layer, "attn.q_rope"][None].transpose(1, 2)
        k, v = cache.permute(1, 2, 0, 3)[:, None]
        rows, keys = len(run.rows), len(cache)
        allowed = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)[None, None]
        eager = config._attn_implementation == "eager"
        mask = None if rows in (1, keys) else allowed
        if eager:
            mask = torch.zeros(allowed.shape, dtype=q.dtype)
            mask.masked_fill_(~allowed, torch.finfo(q.dtype).min)
        function = self.modeling.ALL_ATTENTION_FUNCTIONS.get_interface(
            config._attn_implementation, self.modeling.eager_attention_forward)
        return function(attn, q, k, v, mask, scaling=attn.scaling)[0][0]

    def mlp_op(self, run: Pass, layer: int, point: str) -> Tensor:
        block = self.model.model.layers[layer]

        def seen(name: str) -> Tensor:
            return run.tensors[layer, name]

        if point == "mlp.norm":
            return block.post_attention_layernorm(seen("attn.residual")[None])[0]
        if point in ("mlp.gate", "mlp.up"):
            return getattr(block.mlp, point[4:] + "_proj")(seen("mlp.norm")[None])[0]
        if point == "mlp.act":
            return block.mlp.act_fn(seen("mlp.gate")) * seen("mlp.up")
        if point == "mlp.down":
            return block.mlp.down_proj(seen("mlp.act")[None])[0]
        if point == "mlp.residual":
            dense = (layer, "mlp.down") in run.tensors
            return seen("attn.residual") + seen("mlp.down" if dense else "mlp.combine")
        return self.expert_op(block.mlp, seen, point)

    def expert_op(self, mlp: nn.Module, seen, point: str) -> Tensor:
        experts = mlp.experts
        if point == "mlp.router":
            return nn.functional.linear(seen("mlp.norm"), mlp.gate.weight)
        if point in ("mlp.experts", "mlp.weights"):
            chances = torch.softmax(seen("mlp.router"), dim=-1, dtype=torch.float)
            if point == "mlp.experts":
                return torch.topk(chances, mlp.gate.top_k, dim=-1).indices.to(torch.int32)
            weights = torch.gather(chances, 1, seen("mlp.experts").long())
            if mlp.gate.norm_topk_prob:
                weights = weights / weights.sum(dim=-1, keepdim=True)
            return weights.to(seen("mlp.router").dtype)
        if point == "mlp.expert_act":
            return experts.act_fn(seen("mlp.expert_gate")) * seen("mlp.expert_up")
        made = torch.zeros_like(seen(point))
        for expert in range(experts.num_experts):
            choice, token = torch.where((seen("mlp.experts") == expert).T)
            if not len(token):
                continue
            if point == "mlp.combine":
                part = seen("mlp.expert_down")[token, choice]
                made.index_add_(0, token, part * seen("mlp.weights")[token, choice, None])
            elif point == "mlp.expert_down":
                made[token, choice] = nn.functional.linear(seen("mlp.expert_act")[token, choice],
                                                           experts.down_proj[expert])
            else:
                both = nn.functional.linear(seen("mlp.norm")[token], experts.gate_up_proj[expert])
                made[token, choice] = both.chunk(2, dim=-1)[point == "mlp.expert_up"]
        return made


def recorded(run: Pass, place: Place) -> Tensor:
    return run.caches[place[0], 0] if place[1] == "attn.kv" else run.tensors[place]


@dataclasses.dataclass(frozen=True)
class Effect:
    """What a bug does at its own op: over the passes in which it does anything."""

    first_pass: int      # -1: it does nothing in any
    passes: int
    share: float         # of the elements of these passes
    max_ulp: float
    mean_ulp: float      # over all elements of these passes
    relative_rms: float  # of the difference, by the rms of what is right


def ulps(got: Tensor, want: Tensor) -> Tensor:
    """Each difference in units of the last place of the right value."""
    if want.dtype not in MANTISSA:
        return (got != want).double()
    exponent = torch.frexp(want.double()).exponent - 1
    least = math.frexp(torch.finfo(want.dtype).tiny)[1] - 1
    unit = torch.exp2((exponent.clamp(min=least) - MANTISSA[want.dtype]).double())
    return ((got.double() - want.double()) / unit).abs().nan_to_num(nan=math.inf)


def effect_of(model: nn.Module, passes: list[Pass], place: Place) -> Effect:
    """Compares the recorded tensors of a place with what its op should have made."""
    ops = RightOps(model, passes)
    first, wrong, differences, wants = -1, 0, [], []
    for number, run in enumerate(passes):
        got, want = recorded(run, place), ops.right(number, place)
        if got.shape != want.shape:
            return Effect(number, len(passes) - number, 1, math.inf, math.inf, math.inf)
        if torch.equal(got, want):
            continue
        first = number if first < 0 else first
        wrong += 1
        differences.append((ulps(got, want).ravel(), (got.double() - want.double()).ravel()))
        wants.append(want.double().ravel())
    if first < 0:
        return Effect(-1, 0, 0, 0, 0, 0)
    units = torch.cat([unit for unit, _ in differences])
    plain = torch.cat([difference for _, difference in differences])
    size = plain.square().mean().sqrt() / torch.cat(wants).square().mean().sqrt()
    return Effect(first, wrong, float((plain != 0).double().mean()), float(units.max()),
                  float(units.mean()), float(size))
