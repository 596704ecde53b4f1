"""TensorRT Edge-LLM's layer debugger: one safetensors of all rounds of a batch.

    round_0.logits [batch, vocab]                        of each sequence's last token
    round_0.layer_3.kv [batch, 2, kv head, column, dim]  the cache after it, with room to spare
    round_0.context_lengths [batch]                      how many columns are of the sequence
    round_0.generated_token_ids [batch]                  which the next round is fed
"""
from __future__ import annotations

import functools
import pathlib
import re

import numpy as np
from numpy.typing import NDArray

from lockstep.dumps.dump import Dump
from lockstep.dumps.loads import Load
from lockstep.dumps.safetensors_file import read_safetensors
from lockstep.errors import check

NAME = re.compile(r"round_(\d+)\.(.+)")


def _file(path: pathlib.Path) -> pathlib.Path | None:
    if path.is_file():
        return path if path.suffix == ".safetensors" else None
    return next(iter(sorted(path.glob("edgellm_dump*.safetensors"))), None)


def is_edge_llm(path: pathlib.Path) -> bool:
    file = _file(path)
    return file is not None and any(NAME.fullmatch(name) for name in read_safetensors(file))


def read_edge_llm(path: pathlib.Path) -> Dump:
    """Of the batch whose file it is, or of the first one of a folder. The prompts are not there."""
    file = _file(path)
    check(file, f"{path} has no edgellm_dump.safetensors: a dump was wanted")
    rounds: dict[int, dict[str, Load]] = {}
    for name, load in read_safetensors(file).items():
        found = NAME.fullmatch(name)
        if found:
            rounds.setdefault(int(found[1]), {})[found[2]] = load
    dump, before, fed = Dump(), np.zeros(0, np.int64), None
    for number in sorted(rounds):
        loads = rounds[number]
        lengths = _integers(loads, "context_lengths")
        check(lengths is not None, f"{file}: round {number} has no context_lengths, so that nobody "
              "knows how much of its cache is meant")
        new = lengths - before if len(lengths) == len(before) else lengths
        if len(before) and (len(lengths) != len(before) or (new != 1).any()):
            dump.skip(f"round {number} and what follows: a sequence ended, or several tokens were "
                      "taken at once, and the file does not say which")
            break
        rows: dict[str, NDArray[np.int64]] = {
            "positions": np.concatenate([np.arange(end - count, end)
                                         for end, count in zip(lengths, new)]),
            "requests": np.repeat(np.arange(len(lengths)), new)}
        if fed is not None:
            rows["tokens"] = fed
        at = len(dump.passes)
        for name, values in rows.items():
            dump.add(at, name, functools.partial(np.copy, values))
        for name, load in loads.items():
            if name not in ("context_lengths", "generated_token_ids"):
                dump.add(at, name, load)
        before, fed = lengths, _integers(loads, "generated_token_ids")
    return dump


def _integers(loads: dict[str, Load], name: str) -> NDArray[np.int64] | None:
    return np.asarray(loads[name](), np.int64).reshape(-1) if name in loads else None
