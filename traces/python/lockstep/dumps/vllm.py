"""vLLM's intermediate logging: a folder a step, in it one a module, in it a file a tensor."""
from __future__ import annotations

import functools
import pathlib
import re

from lockstep.dumps.dump import Dump, of_ranks, one_tensor

FILE = re.compile(r"(?P<side>inputs|outputs|post_fwd_inputs)(?P<rest>(_\w+?)*?)_(cuda|cpu)"
                  r"(_(?P<device>\d+))?\.pt")


def is_intermediates(path: pathlib.Path) -> bool:
    return path.is_dir() and any(FILE.fullmatch(file.name) for step in path.rglob("step_*")
                                 if step.is_dir() for file in step.rglob("*.pt"))


def read_intermediates(path: pathlib.Path) -> Dump:
    """OUT/UUID/step_3/model.layers.0.self_attn.qkv_proj/outputs_0_cuda_0.pt; the last number is of
    the device, one a rank."""
    dumps: dict[int, Dump] = {}
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
            dump = dumps.setdefault(int(match["device"] or 0), Dump())
            dump.add(number, key, functools.partial(one_tensor, file))
    if len(dumps) == 1:
        return dumps.popitem()[1]
    return of_ranks(path, dumps)
