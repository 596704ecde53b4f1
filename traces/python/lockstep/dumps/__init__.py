"""Readers of other tools' dumps: each makes a Dump of what it finds, whoever wrote it.

Every key is the name of a module (or tensor) with what of it is meant: `NAME:out`, `NAME:out.1`
where it returned several, `NAME:in.0` and `NAME:in.hidden_states` of what it was given. Tensors
that are no module's have their name alone.
"""
from __future__ import annotations

import pathlib
from collections.abc import Callable

from lockstep.dumps import (debugger, edge_llm, msprobe, plain, polygraphy, sglang, tensorrt_llm,
                            vllm)
from lockstep.dumps.dump import Dump
from lockstep.errors import DAMAGE, LockstepError, check, one_line

# By name: whether the path looks like one, and its reader. The first that says so is taken.
FORMATS: dict[str, tuple[Callable[[pathlib.Path], bool], Callable[[pathlib.Path], Dump]]] = {
    "sglang-dumper": (sglang.is_dumper, sglang.read_dumper),
    "pass-files": (sglang.is_pass_files, sglang.read_pass_files),
    "vllm-intermediates": (vllm.is_intermediates, vllm.read_intermediates),
    "msprobe": (msprobe.is_msprobe, msprobe.read_msprobe),
    "debugger": (debugger.is_debugger, debugger.read_debugger),
    "tensorrt-llm-npy": (tensorrt_llm.is_executor, tensorrt_llm.read_executor),
    "tensorrt-llm-pt": (tensorrt_llm.is_hooks, tensorrt_llm.read_hooks),
    "polygraphy": (polygraphy.is_results, polygraphy.read_results),
    "vllm-hidden-states": (vllm.is_hidden_states, vllm.read_hidden_states),
    "edge-llm": (edge_llm.is_edge_llm, edge_llm.read_edge_llm),
    "plain": (plain.is_plain, plain.read_plain),
}


def read_dump(path: pathlib.Path, kind: str = "") -> tuple[str, Dump]:
    """The name of the dump's format, and what is in it. kind "": the format that it looks like."""
    check(path.exists(), f"{path} is not there: a dump was wanted")
    if kind:
        check(kind in FORMATS, f"'{kind}' is no format of dumps ({', '.join(FORMATS)})")
        fits, read = FORMATS[kind]
        try:
            return kind, read(path)
        except DAMAGE as error:
            check(fits(path), f"{path} does not look like {kind}: leave --format out to have its "
                  f"format found, or name another ({one_line(error)})")
            raise
    for name, (fits, read) in FORMATS.items():
        if fits(path):
            return name, read(path)
    raise LockstepError(f"{path} looks like no dump that is known ({', '.join(FORMATS)}): "
                        f"{_contents(path)}; --format says what it is")


def _contents(path: pathlib.Path) -> str:
    """What is there instead."""
    if path.is_file():
        return "it is one file"
    names = sorted(entry.name for entry in path.iterdir())
    if not names:
        return "it is an empty folder"
    return f"it is a folder of {', '.join(names[:3])}{', ...' if names[3:] else ''}"
