"""Things that are not bugs: other kernels, orders, caches and schedules, each with its rounding."""
from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.functional import linear
from transformers import StaticCache

import patches
from bugs_linear import tf32_operands
from bugs_norm import frequencies, tables, turned
from capture import Plan
from patches import Patch
from variant import NORMS, ROPES, Variant, declared
from variants_attention import VARIANTS as ATTENTION_VARIANTS

Tensor = torch.Tensor

LINEARS = ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.gate", "mlp.up", "mlp.down")


def points_of(model: nn.Module, points: tuple[str, ...]) -> list[nn.Module]:
    """The modules of all layers that make these points, as far as the model has them."""
    layers = range(len(model.model.layers))
    first = model.model.layers[0]
    lacking = set() if hasattr(first.self_attn, "q_norm") else {"attn.q_norm", "attn.k_norm"}
    if hasattr(first.mlp, "experts"):
        lacking |= {"mlp.gate", "mlp.up", "mlp.down"}
    return [module for point in points if point not in lacking
            for module in patches.modules_of(model, layers, point)]


def linears(name: str, story: str, function: Callable[[nn.Module, Tensor], Tensor],
            *needs: str, **more) -> Variant:
    """function(module, x) in the place of every linear op."""
    def patch(model: nn.Module) -> Patch:
        return patches.forward(points_of(model, LINEARS) + [model.lm_head], function)
    return Variant(name, story, patch, needs=frozenset(needs), **more)


def wide(dtype: torch.dtype) -> Callable[[nn.Module, Tensor], Tensor]:
    """Products and sums in that type, rounded once."""
    def function(module: nn.Module, x: Tensor) -> Tensor:
        bias = None if module.bias is None else module.bias.to(dtype)
        return linear(x.to(dtype), module.weight.to(dtype), bias).to(x.dtype)
    return function


def split_k(module: nn.Module, x: Tensor, parts: int = 4) -> Tensor:
    """Four partial sums in fp32, added at the end."""
    total = sum(linear(a, w) for a, w in zip(x.float().chunk(parts, -1),
                                             module.weight.float().chunk(parts, -1)))
    return (total if module.bias is None else total + module.bias.float()).to(x.dtype)


def backwards(module: nn.Module, x: Tensor) -> Tensor:
    """The products of the last column first."""
    bias = None if module.bias is None else module.bias.float()
    return linear(x.float().flip(-1), module.weight.float().flip(-1), bias).to(x.dtype)


def row_by_row(module: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([linear(row, module.weight, module.bias) for row in x.split(1, 1)], 1)


def one_product_a_time(module: nn.Module, x: Tensor) -> Tensor:
    """The longest chain of fp32 additions, in order."""
    total = torch.zeros(*x.shape[:-1], module.weight.shape[0])
    for a, w in zip(x.float().unbind(-1), module.weight.float().unbind(-1)):
        total += a[..., None] * w
    return (total if module.bias is None else total + module.bias.float()).to(x.dtype)


def column_major(module: nn.Module, x: Tensor) -> Tensor:
    return linear(x, module.weight.t().contiguous().t(), module.bias)


def joined(model: nn.Module) -> Patch:
    """q, k and v in one product, and gate and up in one."""
    found = []
    for block in model.model.layers:
        attn = block.self_attn
        for group in ([attn.q_proj, attn.k_proj, attn.v_proj],
                      [block.mlp.gate_proj, block.mlp.up_proj]):
            weight = torch.cat([module.weight for module in group]).detach()
            bias = None
            if group[0].bias is not None:
                bias = torch.cat([module.bias for module in group]).detach()
            ends = [0]
            for module in group:
                ends.append(ends[-1] + module.weight.shape[0])
                found.append(patches.forward([module], lambda _m, x, w=weight, b=bias,
                                             part=slice(*ends[-2:]): linear(x, w, b)[..., part]))
    return patches.together(found)


LINEAR_VARIANTS = [
    linears("linear-fp32-once", "products in fp32, rounded once", wide(torch.float32)),
    linears("linear-fp64-once", "products in fp64, rounded once", wide(torch.float64)),
    linears("linear-split-k", "four partial sums in fp32", split_k),
    linears("linear-backwards", "the last product first", backwards),
    linears("linear-in-order", "one chain of fp32 additions", one_product_a_time),
    linears("linear-row-by-row", "a product of matrix and vector a token", row_by_row),
    linears("linear-column-major", "weights lie the other way round", column_major),
    linears("linear-tf32-declared", "operands rounded to tf32, as the manifest says",
            tf32_operands, "fp32", provenance={"accumulator": "tf32"}),
    Variant("linear-joined", "q, k, v in one product; gate and up in one", joined,
            needs=frozenset(["dense"])),
]


def norms(name: str, story: str, function: Callable[[nn.Module, Tensor], Tensor],
          rounding: str) -> Variant:
    """function(module, x) in the place of every norm."""
    return Variant(name, story, lambda model: patches.forward(points_of(model, NORMS), function),
                   declared(NORMS, rounding))


def fused_norm(dtype: torch.dtype) -> Callable[[nn.Module, Tensor], Tensor]:
    def function(module: nn.Module, x: Tensor) -> Tensor:
        values = x.to(dtype)
        scale = 1 / (values.pow(2).mean(-1, keepdim=True) + module.variance_epsilon).sqrt()
        return (values * scale * module.weight.to(dtype)).to(x.dtype)
    return function


def norm_in_parts(module: nn.Module, x: Tensor) -> Tensor:
    """As transformers has it, but the squares are summed backwards in parts of 8."""
    values = x.float()
    squares = values.pow(2).flip(-1).unflatten(-1, (-1, 8)).sum(-2).sum(-1, keepdim=True)
    values = values * torch.rsqrt(squares / x.shape[-1] + module.variance_epsilon)
    return module.weight * values.to(x.dtype)


def torch_rms_norm(module: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


def add_norm(model: nn.Module) -> Patch:
    """Norms read the fp32 sum whose rounding the stream keeps, as FlashInfer's fused kernel."""
    sums: dict[str, Tensor] = {}

    def add(x: Tensor, y: Tensor, *_rest) -> Tensor:
        sums["wide"] = x.float() + y.float()
        return sums["wide"].to(x.dtype)

    def norm(module: nn.Module, x: Tensor) -> Tensor:
        values = sums.pop("wide", x)
        return fused_norm(torch.float32)(module, values).to(x.dtype)

    layers = range(len(model.model.layers))
    places = points_of(model, ("attn.norm", "mlp.norm", "final.norm"))
    return patches.together([patches.decoder(model, layers, add, add),
                             patches.forward(places, norm),
                             patches.forward(points_of(model, ("attn.q_norm", "attn.k_norm")),
                                             fused_norm(torch.float32))])


NORM_VARIANTS = [
    norms("norm-fused", "fp32, rounded once", fused_norm(torch.float32), "fused"),
    norms("norm-fp64", "fp64, rounded once", fused_norm(torch.float64), "fused"),
    norms("norm-in-parts", "the squares summed in another order", norm_in_parts, "hf"),
    norms("norm-of-torch", "torch.nn.functional.rms_norm", torch_rms_norm, "fused"),
    Variant("add-norm-fused", "the norm reads the sum before it is rounded", add_norm,
            declared(NORMS, "fused") | declared(("attn.norm", "mlp.norm", "final.norm"),
                                                "unrounded_sum")),
]


def ropes(name: str, story: str, rounding: str, function: Callable) -> Variant:
    """function(model, inner, q, k, cos, sin, positions) in the place of RoPE."""
    def patch(model: nn.Module) -> Patch:
        return patches.rope(model, range(len(model.model.layers)),
                            lambda *given: function(model, *given))
    return Variant(name, story, patch, declared(ROPES, rounding))


def once_rounded(tables_of: Callable) -> Callable:
    """tables_of(model, positions, dtype) in wide numbers; products and sum too."""
    def function(model: nn.Module, inner, q, k, _cos, _sin, positions):
        cos, sin = tables_of(model, positions, q.dtype)
        made = inner(q.to(cos.dtype), k.to(cos.dtype), cos, sin)
        return tuple(t.to(q.dtype) for t in made)
    return function


def fp32_tables(model: nn.Module, positions: Tensor, _dtype) -> tuple[Tensor, Tensor]:
    return tables(turned(positions, frequencies(model)), torch.float32)


def fp64_tables(model: nn.Module, positions: Tensor, _dtype) -> tuple[Tensor, Tensor]:
    dim = model.model.layers[0].self_attn.head_dim
    theta = model.config.rope_parameters["rope_theta"]
    exact = 1 / theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return tables(positions[..., None].double() * exact, torch.float64)


def low_tables(model: nn.Module, positions: Tensor, dtype) -> tuple[Tensor, Tensor]:
    """vLLM's cos_sin_cache: tables in the model's type, the arithmetic in fp32."""
    return tuple(t.to(dtype).float() for t in fp32_tables(model, positions, dtype))


def own_tables(model: nn.Module, inner, q, k, _cos, _sin, positions):
    """Tables of fp64 angles, then transformers' arithmetic."""
    return inner(q, k, *(t.to(q.dtype) for t in fp64_tables(model, positions, q.dtype)))


def complex_product(model: nn.Module, _inner, q, k, _cos, _sin, positions):
    """The product of complex numbers in fp32 that Meta's code has, over halves."""
    angles = turned(positions, frequencies(model))[:, None]
    factor = torch.polar(torch.ones_like(angles), angles)

    def turn(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        made = torch.complex(x[..., :half].float(), x[..., half:].float()) * factor
        return torch.cat((made.real, made.imag), -1).to(x.dtype)
    return turn(q), turn(k)


ROPE_VARIANTS = [
    ropes("rope-fp32-once", "fp32 tables, rounded once", "fused", once_rounded(fp32_tables)),
    ropes("rope-fp64-once", "fp64 angles, rounded once", "fused", once_rounded(fp64_tables)),
    ropes("rope-fp64-tables", "tables of fp64 angles, then transformers'", "hf", own_tables),
    ropes("rope-complex", "complex products in fp32, rounded once", "fused", complex_product),
    ropes("rope-low-tables-once", "tables in the model's type, then fp32, rounded once",
          "tables_rounded", once_rounded(low_tables)),
]


def activation(name: str, story: str, rounding: str, function: Callable) -> Variant:
    def patch(model: nn.Module) -> Patch:
        return patches.forward([block.mlp for block in model.model.layers], lambda module, x:
                               module.down_proj(function(module.gate_proj(x), module.up_proj(x))))
    return Variant(name, story, patch, declared("mlp.act", rounding), needs=frozenset(["dense"]))


def tanh_silu(gate: Tensor, up: Tensor) -> Tensor:
    half = gate.float() / 2
    return (half * (1 + torch.tanh(half)) * up.float()).to(up.dtype)


ACTIVATIONS = [
    activation("act-fused", "fp32, rounded once", "fused", lambda gate, up:
               (nn.functional.silu(gate.float()) * up.float()).to(up.dtype)),
    activation("act-by-tanh", "x / 2 (1 + tanh(x / 2)), rounded once", "fused", tanh_silu),
    activation("act-exp2", "sigmoid by powers of 2 in fp32, silu rounded, then the product", "hf",
               lambda gate, up: (gate.float() / (1 + torch.exp2(-1.4426950408889634
                                                                * gate.float()))).to(up.dtype)
               * up),
]


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def chunked(*lengths: int) -> Callable[[Plan], Plan]:
    """The last chunk takes what is left. A prompt that is too short for that is cut evenly."""
    def change(plan: Plan) -> Plan:
        whole, firsts = len(plan.prompts[0]), lengths
        if whole <= sum(firsts):
            firsts = (whole // (len(lengths) + 1),) * len(lengths)
        return dataclasses.replace(plan, chunks=(*firsts, whole - sum(firsts)))
    return change


def in_batch(*lengths: int) -> Callable[[Plan], Plan]:
    """Other requests beside it, which begin with parts of its prompt."""
    def change(plan: Plan) -> Plan:
        prompt = plan.prompts[0]
        return dataclasses.replace(plan, prompts=(prompt, *(prompt[-count:] for count in lengths)))
    return change


def forced(plan: Plan) -> Plan:
    return dataclasses.replace(plan, forced=plan.prompts[0][:plan.steps])


def leaving_out(name: str, *points: str) -> Variant:
    return Variant(f"without-{name}", f"without {', '.join(points)}", plan=lambda plan:
                   dataclasses.replace(plan, leave_out=frozenset(points)), lacks=True)


SCHEDULES = [
    Variant("plain", "transformers as it is"),
    Variant("threads-2", "two threads", lambda _model: threads(2)),
    Variant("without-onednn", "PyTorch's own matrix products", lambda _model:
            torch.backends.mkldnn.flags(enabled=False)),
    Variant("chunks-2", "prefill in two passes", plan=chunked(40)),
    Variant("chunks-3", "prefill in three passes", plan=chunked(31, 33)),
    Variant("chunks-last-alone", "the prompt's last token in a pass of its own",
            plan=lambda plan: chunked(len(plan.prompts[0]) - 1)(plan)),
    Variant("static-cache", "a cache of fixed size", cache=lambda model:
            StaticCache(config=model.config, max_cache_len=128)),
    Variant("batch-of-equals", "another request of the same length",
            plan=lambda plan: in_batch(len(plan.prompts[0]))(plan)),
    Variant("batch-padded", "two shorter requests, padded on the left", plan=in_batch(50, 23)),
    Variant("all-logits", "logits of every row of the prompt", plan=lambda plan:
            dataclasses.replace(plan, all_logits=True)),
    Variant("forced-tokens", "other tokens are fed back than the likeliest", plan=forced),
    leaving_out("kv", "attn.kv"),
    leaving_out("norms", "attn.q_norm", "attn.k_norm", "attn.norm", "mlp.norm"),
    leaving_out("act", "mlp.act", "mlp.expert_act"),
    leaving_out("insides", "attn.q", "attn.k", "attn.v", "attn.q_norm", "attn.k_norm",
                "attn.q_rope", "attn.k_rope", "attn.kv", "attn.out", "mlp.gate", "mlp.up",
                "mlp.act"),
]

VARIANTS: dict[str, Variant] = {variant.name: variant for variant in (
    SCHEDULES + LINEAR_VARIANTS + NORM_VARIANTS + ROPE_VARIANTS + ACTIVATIONS
    + ATTENTION_VARIANTS)}
