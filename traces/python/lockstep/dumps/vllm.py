"""vLLM's intermediate logging: a folder a step, in it one a module, in it a file a tensor.

And its hidden states by ExampleHiddenStatesConnector, which works with graphs and over ranks: a
file a request, REQUEST.safetensors, of `token_ids` and of `hidden_states` [token, layer, h].
"""
from __future__ import annotations

import functools
import pathlib
import re
from typing import Any

import numpy as np

from lockstep.dumps.dump import Dump, one_tensor
from lockstep.dumps.loads import Load
from lockstep.dumps.safetensors_file import read_safetensors
from lockstep.elements import Elements

FILE = re.compile(r"(?P<side>inputs|outputs|post_fwd_inputs)(?P<rest>(_\w+?)*?)_(cuda|cpu)(_\d+)?"
                  r"\.pt")


def is_intermediates(path: pathlib.Path) -> bool:
    return path.is_dir() and any(FILE.fullmatch(file.name) for step in path.rglob("step_*")
                                 if step.is_dir() for file in step.rglob("*.pt"))


def read_intermediates(path: pathlib.Path) -> Dump:
    """OUT/UUID/step_3/model.layers.0.self_attn.qkv_proj/outputs_0_cuda_0.pt"""
    dump = Dump()
    steps = sorted((step for step in path.rglob("step_*") if step.is_dir()),
                   key=lambda step: int(step.name.removeprefix("step_")))
    for number, step in enumerate(steps):
        for file in sorted(step.rglob("*.pt")):
            match = FILE.fullmatch(file.name)
            if match is None or match["side"] == "post_fwd_inputs":
                continue
            module = ".".join(file.parent.relative_to(step).parts)
            call = re.search(r"(?<=[a-z])_(\d+)$", module)  # a module that was called again
            module = module[:call.start()] if call and int(call[1]) > 0 else module
            side = "in" if match["side"] == "inputs" else "out"
            key = f"{module}:{side}{match['rest'].replace('_', '.', 1)}"
            dump.add(number, key, functools.partial(one_tensor, file))
    return dump


def _requests_of(path: pathlib.Path) -> list[dict[str, Load]]:
    """The files of such requests, in the order of their names."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    found = [read_safetensors(file) for file in files if file.suffix == ".safetensors"]
    return [loads for loads in found if set(loads) == {"hidden_states", "token_ids"}]


def is_hidden_states(path: pathlib.Path) -> bool:
    return bool(_requests_of(path))


def read_hidden_states(path: pathlib.Path) -> Dump:
    """A pass a request, as if all of its tokens had been fed at once."""
    dump = Dump()
    for number, loads in enumerate(_requests_of(path)):
        states, tokens = loads["hidden_states"](), np.asarray(loads["token_ids"]()).reshape(-1)
        for name, values in (("tokens", tokens), ("positions", np.arange(len(tokens))),
                             ("requests", np.full(len(tokens), number))):
            dump.add(number, name, functools.partial(np.copy, values))
        bits = states.bits if isinstance(states, Elements) else states
        for layer in range(bits.shape[1] if bits.ndim == 3 else 0):
            dump.add(number, f"hidden_states.{layer}", functools.partial(_layer, states, layer))
    return dump


def _layer(states: Any, layer: int) -> Any:
    if isinstance(states, Elements):
        return Elements(np.ascontiguousarray(states.bits[:, layer]), states.dtype)
    return np.ascontiguousarray(states[:, layer])
