"""Where the points of a model round inside, by engine, in the words of src/judge/contracts.h.

roundings.json has the points that do not round once, at their store. A test of the judge holds it
to the table of src/judge/presets.cc, which says where each line was read.
"""
from __future__ import annotations

import functools
import importlib.resources
import json

from lockstep.errors import check
from lockstep.points import AXES, nearest


@functools.cache
def _engines() -> dict[str, dict[str, str]]:
    return json.loads((importlib.resources.files("lockstep") / "roundings.json").read_text())


def rounding(name: str) -> dict[str, str]:
    """The contract of each point, as an engine of `lockstep judge --schema` has it: fused, hf,
    hf-eager, vllm, vllm-0.19, sglang, trt-llm, llama.cpp, llama.cpp-f16 or llama.cpp-f32."""
    engines = _engines()
    near = nearest(name, engines)
    hint = f": {near} is the nearest" if near else ""
    check(name in engines, f"'{name}' is no set of rounding contracts{hint} ({', '.join(engines)}, "
          "or an object of contracts by point)")
    return dict.fromkeys(AXES, "fused") | engines[name]
