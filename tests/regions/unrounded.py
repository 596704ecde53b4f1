"""Right kernels that do not store, and so do not round, what a trace does not have either.

A norm that is deferred into the products after it, QK-norm and RoPE within attention, SiLU within
the last product of an MLP, a residual sum within a product: each computes in fp32 and rounds where
it stores. Each goes with the selections that have none of the points that it leaves unrounded.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import nn

import patches
from patches import Patch
from selections import SELECTIONS
from variant import NORMS, ROPES, Variant, declared
from variants import fp32_tables, points_of

Tensor = torch.Tensor
LINEARS = ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.gate", "mlp.up", "mlp.down")
ALL_NORMS = ("attn.norm", "attn.q_norm", "attn.k_norm", "mlp.norm", "final.norm")


def store(unrounded: frozenset[str], point: str, made: Tensor, dtype: torch.dtype) -> Tensor:
    return made if point in unrounded else made.to(dtype)


def norm(unrounded: frozenset[str], point: str) -> Callable[[nn.Module, Tensor], Tensor]:
    def function(module: nn.Module, x: Tensor) -> Tensor:
        values = x.float()
        scale = 1 / (values.pow(2).mean(-1, keepdim=True) + module.variance_epsilon).sqrt()
        return store(unrounded, point, values * scale * module.weight.float(),
                     module.weight.dtype)
    return function


def linear(unrounded: frozenset[str], point: str) -> Callable[[nn.Module, Tensor], Tensor]:
    def function(module: nn.Module, x: Tensor) -> Tensor:
        bias = None if module.bias is None else module.bias.float()
        made = nn.functional.linear(x.float(), module.weight.float(), bias)
        return store(unrounded, point, made, module.weight.dtype)
    return function


def patch_of(unrounded: frozenset[str]) -> Callable[[nn.Module], Patch]:
    def patch(model: nn.Module) -> Patch:
        layers, dtype = range(len(model.model.layers)), model.dtype

        def rope(_inner, q, k, _cos, _sin, positions):
            cos, sin = (t[:, None] for t in fp32_tables(model, positions, dtype))

            def turn(x: Tensor) -> Tensor:
                one, two = x.float().chunk(2, -1)
                return x.float() * cos + torch.cat((-two, one), -1) * sin
            return store(unrounded, "attn.q_rope", turn(q), dtype), turn(k).to(dtype)

        def attention(_inner, _module, q, k, v, _mask, scaling, **_options):
            made, _ = patches.attend(q.float(), k, v, scaling)
            return store(unrounded, "attn.out", made, dtype), None

        def mlp(module: nn.Module, x: Tensor) -> Tensor:
            gate, up = module.gate_proj(x).float(), module.up_proj(x).float()
            return module.down_proj(store(unrounded, "mlp.act", nn.functional.silu(gate) * up,
                                          dtype))

        def add(x: Tensor, y: Tensor, *_rest) -> Tensor:
            return (x.float() + y.float()).to(dtype)
        made = [patches.rope(model, layers, rope), patches.attention(model, layers, attention),
                patches.decoder(model, layers, add, add),
                patches.forward([block.mlp for block in model.model.layers], mlp)]
        for point in ALL_NORMS:
            made.append(patches.forward(points_of(model, (point,)), norm(unrounded, point)))
        for point in LINEARS:
            made.append(patches.forward(points_of(model, (point,)), linear(unrounded, point)))
        return patches.together(made)
    return patch


@dataclasses.dataclass(frozen=True)
class Unrounded(Variant):
    """Leaves these points unrounded."""

    points: frozenset[str] = frozenset()

    def fits_selection(self, selection: str) -> bool:
        kept = SELECTIONS[selection]
        return kept is not None and kept.isdisjoint(self.points)


def unrounded(name: str, story: str, *points: str) -> Unrounded:
    contracts = declared((*NORMS, *ROPES, "attn.out", "mlp.act"), "fused")
    return Unrounded(name, story, patch_of(frozenset(points)), contracts, attention=("sdpa",),
                     needs=frozenset(["dense", "16 bits"]), points=frozenset(points))


VARIANTS = {variant.name: variant for variant in (
    unrounded("norm-deferred", "norms within the products after them", "attn.norm", "mlp.norm"),
    unrounded("mlp-norm-deferred", "the norm within gate and up", "mlp.norm"),
    unrounded("rope-in-attention", "Q is turned where it is read", "attn.q_rope"),
    unrounded("qk-norm-in-attention", "and normed there", "attn.q_norm", "attn.k_norm",
              "attn.q_rope"),
    unrounded("q-in-attention", "and computed there", "attn.q", "attn.q_norm", "attn.k",
              "attn.k_norm", "attn.q_rope"),
    unrounded("act-in-product", "SiLU within the last product", "mlp.act"),
    unrounded("mlp-in-one", "no tensor of the MLP is stored", "mlp.gate", "mlp.up", "mlp.act"),
    unrounded("residual-in-product", "sums within the products before them", "attn.o",
              "mlp.down"),
    unrounded("attention-and-product", "the product reads attention's sums", "attn.out"),
    unrounded("half-a-layer-in-one", "nothing between two residuals is stored but K and V",
              "attn.norm", "attn.q", "attn.k", "attn.q_norm", "attn.k_norm", "attn.q_rope",
              "attn.out", "attn.o", "mlp.norm", "mlp.gate", "mlp.up", "mlp.act", "mlp.down"))}
