# The fused ops of lockstep_ops.h in torch, right: what lies between their pieces stays in fp32.
import torch


def _normed(x, weight, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight.float()


def _turned(x, weight, eps, cos, sin, positions):
    x = x.float() if weight is None else _normed(x.float(), weight, eps)
    cos, sin = cos[positions.long(), None], sin[positions.long(), None]
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def add_rms_norm(out, sum, a, b, weight, eps):
    sum.copy_(a.float() + b.float())
    out.copy_(_normed(sum.float(), weight, eps))


def qkv_matmul(q, k, v, x, weights, biases):
    for out, weight, bias in zip((q, k, v), weights, biases):
        made = x.float() @ weight.float().T
        out.copy_(made if bias is None else made + bias.float())


def qk_norm_rope_kv_write(q_rope, cache, q, k, v, q_weight, k_weight, eps, cos, sin, positions,
                          slots):
    q_rope.copy_(_turned(q, q_weight, eps, cos, sin, positions))
    wanted = slots >= 0
    keys = _turned(k, k_weight, eps, cos, sin, positions).to(k.dtype)
    for pages, rows in zip(cache, (keys, v)):
        pages.flatten(0, 1)[slots[wanted]] = rows[wanted]


def gate_up_silu(out, x, gate_weight, up_weight):
    gate, up = (x.float() @ weight.float().T for weight in (gate_weight, up_weight))
    out.copy_(torch.nn.functional.silu(gate) * up)
