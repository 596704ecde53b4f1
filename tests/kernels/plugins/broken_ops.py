# Every function breaks in a way of its own.
import ctypes
import os
import sys
import time

import torch


def rms_norm(out, x, weight, eps):
    raise ValueError("no kernel for\nthis width")


def silu_mul(out, gate, up):
    return gate / (1 + torch.exp(-gate)) * up


def add(out, a, b):
    out[:-1].copy_(a[:-1] + b[:-1])


def weighted_sum(out, x, weights):
    out.copy_((x * weights[..., None]).sum(1))
    torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(7)


def gather_rows(out, index, table):
    out.copy_(table[index.long()])
    table.mul_(2)


def argmax(out, logits):
    sys.exit(3)


def top_k(out, logits):
    time.sleep(0.5)  # until whoever called is waiting for the answer, and no signal would end it
    os.kill(os.getppid(), 2)  # as Ctrl-C does
    while True:
        pass


def kv_gather(out, cache, page_table):
    ctypes.string_at(0)


def matmul(out, x, weight, bias):
    print("this is no result")
    out.copy_(x @ weight.T)
