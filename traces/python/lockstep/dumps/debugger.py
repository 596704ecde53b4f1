"""transformers' model_addition_debugger_context with use_repr=False: safetensors of the last call.

With use_repr=True it writes texts with most of the numbers left out, which nobody can import.
"""
from __future__ import annotations

import functools
import pathlib
import re

from lockstep.dumps.dump import Dump, one_tensor
from lockstep.errors import check

FILE = re.compile(r"(?P<module>.+?)_(?P<side>inputs_args|inputs_kwargs|outputs)(?P<rest>(_\w+)?)"
                  r"\.safetensors")
TREE = "*_debug_tree_FULL_TENSORS.json"


def is_debugger(path: pathlib.Path) -> bool:
    return path.is_dir() and any(path.glob(TREE))


def read_debugger(path: pathlib.Path) -> Dump:
    """CLASS.model.layers.0.self_attn.q_proj_outputs.safetensors is model.layers...q_proj:out."""
    files = sorted(path.glob("*.safetensors"))
    check(files, f"{path} has no safetensors: the debugger kept texts with the numbers left out; "
          "call model_addition_debugger_context with use_repr=False and do_prune_layers=False")
    root = next(path.glob(TREE)).name.removesuffix(TREE[1:])
    dump = Dump()
    for file in files:
        match = FILE.fullmatch(file.name)
        if match is None:
            dump.skip(file.name)
            continue
        module = match["module"].removeprefix(root).removeprefix(".")
        side = "out" if match["side"] == "outputs" else "in"
        dump.add(0, f"{module}:{side}{match['rest'].replace('_', '.', 1)}",
                 functools.partial(one_tensor, file))
    return dump
