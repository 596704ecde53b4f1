"""Polygraphy's RunResults, and the inputs that --save-inputs kept beside them."""
from __future__ import annotations

import base64
import binascii
import io
import json
import pathlib
import pickle
from typing import Any

import numpy as np

from lockstep.dumps.dump import Dump
from lockstep.dumps.loads import Load
from lockstep.errors import LockstepError, check


def is_results(path: pathlib.Path) -> bool:
    if not path.is_file() or path.suffix != ".json":
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    return '"polygraphy_class": "RunResults"' in text or '"polygraphy_class":"RunResults"' in text


def read_results(path: pathlib.Path) -> Dump:
    """An iteration is a pass; INPUTS.json beside RESULTS.json, if there, has what was fed."""
    try:
        runners = json.loads(path.read_text())["lst"]
    except (ValueError, KeyError) as error:
        raise LockstepError(f"{path} is no RunResults of Polygraphy ({error})") from error
    check(len(runners) == 1, f"{path} has the results of {len(runners)} runners: save those of one")
    dump = Dump()
    for number, iteration in enumerate(runners[0][1]):
        for name, value in iteration["outputs"].items():
            dump.add(number, name, _loader(path, name, value))
    inputs = path.with_name("inputs.json")
    if inputs.is_file():
        for number, fed in enumerate(json.loads(inputs.read_text())):
            for name, value in fed.items():
                if name != "polygraphy_class":
                    dump.add(number, name, _loader(inputs, name, value))
    return dump


def _loader(path: pathlib.Path, name: str, value: Any) -> Load:
    def load() -> Any:
        inner = value
        while isinstance(inner, dict) and "values" in inner:  # LazyArray
            inner = inner["values"]
        if not isinstance(inner, dict):
            return None
        try:
            if "array" in inner:
                return np.load(io.BytesIO(base64.b64decode(inner["array"])), allow_pickle=False)
            if "tensor" in inner:
                import torch
                return torch.load(io.BytesIO(base64.b64decode(inner["tensor"])),
                                  map_location="cpu", weights_only=True)
        except (ValueError, binascii.Error, pickle.UnpicklingError, RuntimeError,
                EOFError) as error:
            raise LockstepError(f"{path}: {name} is not read: it holds an object that is no "
                                "tensor, or is damaged") from error
        return None
    return load
