# Every op of lockstep_ops.h in torch, right: for whoever plugs ops of Python in, and for the tests.
import torch


def gather_rows(out, index, table):
    torch.index_select(table, 0, index, out=out)


def rms_norm(out, x, weight, eps):
    x = x.float()
    out.copy_(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight.float())


def matmul(out, x, weight, bias):
    made = x.float() @ weight.float().T
    out.copy_(made if bias is None else made + bias.float())


def rope(out, x, cos, sin, positions):
    cos, sin = cos[positions.long(), None], sin[positions.long(), None]
    low, high = x.float().chunk(2, -1)
    out.copy_(torch.cat((low * cos - high * sin, high * cos + low * sin), -1))


def kv_write(cache, k, v, slots):
    wanted = slots >= 0
    for pages, rows in zip(cache, (k, v)):
        pages.flatten(0, 1)[slots[wanted]] = rows[wanted]


def kv_gather(out, cache, page_table):
    for half, pages in enumerate(cache):
        out[:, half] = pages[page_table.long()].flatten(0, 1)[: len(out)]


def paged_attention(out, q, cache, batch, scale, window):
    starts = batch.query_start.tolist()
    for request, context in enumerate(batch.context_length.tolist()):
        rows = slice(starts[request], starts[request + 1])
        count = rows.stop - rows.start
        pages = batch.page_table[request, : -(-context // cache.k.shape[1])].long()
        k, v = (half[pages].flatten(0, 1)[:context].float() for half in cache)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("thd,jhd->htj", q[rows].float(), k) * scale
        at = torch.arange(context - count, context)[:, None]
        keys = torch.arange(context)[None]
        seen = (keys <= at) & ((keys > at - window) if window > 0 else True)
        weights = scores.masked_fill(~seen.to(scores.device), -torch.inf).softmax(-1)
        out[rows] = torch.einsum("htj,jhd->thd", weights, v).to(out.dtype)


def silu_mul(out, gate, up):
    gate = gate.float()
    out.copy_(gate / (1 + torch.exp(-gate)) * up.float())


def add(out, a, b):
    torch.add(a, b, out=out)


def argmax(out, logits):
    out.copy_(logits.float().argmax(-1))


def top_k(out, logits):
    out.copy_(logits.float().sort(dim=-1, descending=True, stable=True).indices[:, : out.shape[1]])


def softmax_of(out, logits, index, normalised):
    weights = logits.float().softmax(-1).gather(-1, index.long())
    out.copy_(weights / weights.sum(-1, keepdim=True) if normalised else weights)


def expert_matmul(out, x, index, weights):
    x = x if x.dim() == 3 else x[:, None].expand(-1, index.shape[1], -1)
    for expert, weight in enumerate(weights):
        of = index == expert
        out[of] = (x[of].float() @ weight.float().T).to(out.dtype)


def weighted_sum(out, x, weights):
    out.copy_((x.float() * weights.float()[..., None]).sum(1))
