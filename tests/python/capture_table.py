"""Captures runs of Hugging Face's models in all ways, has them judged, and prints a table.

python capture_table.py LOCKSTEP [MODEL ...]. A row is a model, a dtype, an attention and a way to
compute: whether the bits are those without capture, and the verdict.
"""
from __future__ import annotations

import os
import pathlib
import sys
import tempfile

import torch
from transformers import DynamicCache

import support
from support import load, padded, tokens

import lockstep

SETTINGS = (("bfloat16", "sdpa"), ("bfloat16", "eager"), ("float32", "sdpa"), ("float32", "eager"),
            ("float16", "sdpa"))


def generate(ids, new=6, **options):
    options = {"do_sample": False, "max_new_tokens": new} | options
    return lambda model: model.generate(ids, **options)


def drawn(ids):
    def run(model):
        torch.manual_seed(3)
        return generate(ids, do_sample=True, temperature=1.5)(model)
    return run


def loop(ids, cuts):
    """A prompt in chunks and single tokens, all of them given."""
    @torch.no_grad()
    def run(model):
        cache = DynamicCache(config=model.config)
        for part in torch.tensor_split(ids, cuts, dim=1):
            made = model(part, past_key_values=cache)
        return made.logits
    return run


def ways(vocabulary):
    """By name, a function of the model."""
    ids, (batch, mask) = tokens(60, 1, vocabulary), padded([9, 33, 20], vocabulary)
    return {
        "generate": generate(ids),
        "static cache": generate(ids, cache_implementation="static"),
        "left padding": generate(batch, attention_mask=mask),
        "left padding, static": generate(batch, attention_mask=mask,
                                         cache_implementation="static"),
        "sampled": drawn(ids[:, :20]),
        "no cache": generate(ids[:, :20], 4, use_cache=False),
        "chunked prefill": generate(ids, 4, prefill_chunk_size=16),
        "loop, forced tokens": loop(ids[:, :30], (13, 26, 27, 28, 29)),
    }


def judged(model, folder, run, path):
    plain = run(model)
    path.unlink(missing_ok=True)
    with lockstep.capture(model, path):
        made = run(model)
    verdict = lockstep.judge(path, folder)
    bits = "same bits" if torch.equal(plain, made) else "OTHER BITS"
    return f"{bits:10s}  {verdict.judged:5d} of {verdict.expected:5d}  {str(verdict)[:90]}"


def main():
    os.environ["LOCKSTEP"] = str(pathlib.Path(sys.argv[1]).resolve())
    torch.set_num_threads(1)
    folders = sys.argv[2:] or [support.QWEN3, support.QWEN25, support.EXPERTS, support.SLIDING]
    with tempfile.TemporaryDirectory() as base:
        path = pathlib.Path(base) / "x.h5"
        for folder in folders:
            for dtype, attention in SETTINGS:
                model = load(folder, dtype, attention)
                for name, run in ways(model.config.vocab_size).items():
                    print(f"{pathlib.Path(folder).name:14s} {dtype:9s} {attention:6s} {name:22s} "
                          f"{judged(model, folder, run, path)}", flush=True)


if __name__ == "__main__":
    main()
