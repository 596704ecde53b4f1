"""Lockstep's traces in Python: captured, written, read, imported and judged.

    import lockstep
    with lockstep.capture(model, "run.h5"):            # Hugging Face Qwen2, Qwen3, Qwen3-MoE
        model.generate(**inputs, max_new_tokens=8)
    print(lockstep.judge("run.h5", "Qwen3-0.6B"))      # runs the lockstep command

    with lockstep.Writer("x.h5", config) as writer: ...   # any other engine
    trace = lockstep.Trace("x.h5")                        # numpy, pandas, xarray
    print(lockstep.check_op("rms_norm", function))        # one op, without a model
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.errors import LockstepError
from lockstep.rows import PassRows, Request, Row
from lockstep.trace import Trace
from lockstep.verdict import Finding, Verdict, judge
from lockstep.writer import Writer

if TYPE_CHECKING:
    from lockstep import bundle, llama_cpp
    from lockstep.checking import OpCheck, check_op
    from lockstep.huggingface import Capture, capture
    from lockstep.importing import import_dump

__version__ = "0.1.0"
__all__ = ["Capture", "Finding", "LockstepError", "OpCheck", "PassRows", "Request", "Row", "Trace",
           "Verdict", "Writer", "bundle", "capture", "check_op", "import_dump", "judge",
           "llama_cpp"]

_LATE = {"Capture": "lockstep.huggingface", "capture": "lockstep.huggingface",
         "OpCheck": "lockstep.checking", "check_op": "lockstep.checking",
         "import_dump": "lockstep.importing"}
_MODULES = ("bundle", "llama_cpp")


def __getattr__(name: str) -> Any:
    """What needs torch, and what few need, is imported when it is asked for."""
    import importlib
    if name in _MODULES:
        return importlib.import_module(f"lockstep.{name}")
    if name not in _LATE:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)
