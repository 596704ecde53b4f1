# A whole layer in torch, right: what lies between K, V and the result stays in fp32.
import torch


def _linear(x, weight, bias=None):
    made = x @ weight.float().T
    return made if bias is None else made + bias.float()


def _normed(x, weight, eps):
    if weight is None:
        return x
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight.float()


def _turned(x, cos, sin, positions):
    cos, sin = cos[positions.long(), None], sin[positions.long(), None]
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def _attended(q, cache, batch, request, scale, window):
    start, end = batch.query_start[request:request + 2].tolist()
    length = int(batch.context_length[request])
    pages = batch.page_table[request]
    k, v = (side[pages[pages >= 0].long()].flatten(0, 1)[:length].float() for side in cache)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    at = torch.arange(length - (end - start), length)[:, None]
    keys = torch.arange(length)[None]
    seen = (keys <= at) & (keys > (at - window if window > 0 else at * 0 - 1))
    scores = torch.einsum("qhd,khd->hqk", q[start:end], k) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


def decoder_layer(out, cache, x, weights, eps, cos, sin, positions, slots, batch, scale, window):
    w, dim = weights, cache.k.shape[3]
    x = x.float()
    n = _normed(x, w.attn_norm, eps)
    q = _linear(n, w.q, w.q_bias).unflatten(-1, (-1, dim))
    k = _linear(n, w.k, w.k_bias).unflatten(-1, (-1, dim))
    v = _linear(n, w.v, w.v_bias).unflatten(-1, (-1, dim))
    q = _turned(_normed(q, w.q_norm, eps), cos, sin, positions)
    k = _turned(_normed(k, w.k_norm, eps), cos, sin, positions)
    wanted = slots >= 0
    for pages, rows in zip(cache, (k, v)):
        pages.flatten(0, 1)[slots[wanted]] = rows[wanted].to(pages.dtype)
    attended = torch.cat([_attended(q, cache, batch, request, scale, window)
                          for request in range(len(batch.context_length))])
    x = x + _linear(attended.flatten(1), w.o, w.o_bias)
    n = _normed(x, w.mlp_norm, eps)
    act = torch.nn.functional.silu(_linear(n, w.gate)) * _linear(n, w.up)
    out.copy_(x + _linear(act, w.down))
