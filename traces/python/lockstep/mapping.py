"""Map files: which of an engine's tensors is which point. One JSON file an engine family.

    {"about": "for people",
     "like": "sglang",                          all of another map, but for what stands here
     "rows": {"tokens": REGEX, "positions": REGEX, "lengths": REGEX, "requests": REGEX,
              "mask": REGEX},                   of a batch, [row, column so far]: 0 is padding
     "points": [{"match": REGEX,                of a whole key; its first group is the layer
                 "to": "attn.q"                 or a list, which "split" cuts along the last axis
                 "split": ["H*D", "K*D"],       H heads, K kv heads, D head dim, h hidden, I, V
                 "layer_offset": -1,            the tensor is the layer before's
                 "layer": "last"}],             or the last layer's, where the key names none
     "schema": "hf" | {"attn.norm": "hf", ...},     where it rounds; left out: the judge finds it
     "dtype": "fp32"}                               of its runs; left out: what config.json says

Keys are as lockstep/dumps has them: `model.layers.0.self_attn.q_proj:out`, `...:in.0`.
"""
from __future__ import annotations

import dataclasses
import importlib.resources
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Union

from lockstep.errors import LockstepError, check, one_line
from lockstep.points import AXES, MODEL_POINTS, Place, nearest

ROWS = ("tokens", "positions", "lengths", "requests", "mask")


@dataclasses.dataclass(frozen=True)
class Rule:
    """A kind of key, and where the parts of its tensor belong."""

    match: re.Pattern[str]
    to: tuple[str, ...]
    split: tuple[str, ...] = ()
    layer_offset: int = 0
    last: bool = False

    def places(self, key: str, layers: int) -> list[Place]:
        """The places of the key's parts; none where the rule is of other keys."""
        found = self.match.fullmatch(key)
        if found is None:
            return []
        points = [found.expand(to) for to in self.to]
        for point in points:
            if point not in AXES:
                return []
        if points[0] in MODEL_POINTS:
            return [(-1, point) for point in points]
        layer = layers - 1 if self.last else int(found[1]) + self.layer_offset
        return [(layer, point) for point in points]


@dataclasses.dataclass(frozen=True)
class Map:
    """An engine family's names."""

    rules: tuple[Rule, ...]
    rows: Mapping[str, re.Pattern[str]]
    schema: Mapping[str, str]
    dtype: str = ""

    def rule_of(self, key: str, layers: int) -> tuple[Rule, list[Place]] | None:
        for rule in self.rules:
            places = rule.places(key, layers)
            if places:
                return rule, places
        return None


def names() -> list[str]:
    """The maps that come with the package."""
    folder = importlib.resources.files("lockstep") / "maps"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir()
                  if entry.name.endswith(".json"))


def read_map(name: Union[str, pathlib.Path]) -> Map:
    """A map by its name or its path."""
    content = _content(str(name))
    if "like" in content:
        content = {**_content(str(content["like"])), **content}
    unknown = set(content) - {"about", "like", "rows", "points", "schema", "dtype"}
    check(not unknown, f"the map {name} has {', '.join(sorted(unknown))}, which no map has")
    try:
        rules = tuple(_rule(entry, str(name)) for entry in content["points"])
        rows = {kind: re.compile(content.get("rows", {}).get(kind, "(?!)")) for kind in ROWS}
    except (KeyError, TypeError, AttributeError, RecursionError, re.error) as error:
        of = f" in {error.pattern!r}" if isinstance(error, re.error) else ""
        raise LockstepError(f"the map {name} is not understood ({one_line(error)}{of}): see "
                            "lockstep/mapping.py") from error
    return Map(rules, rows, _schema(content.get("schema", {})), content.get("dtype", ""))


def _content(name: str) -> dict[str, Any]:
    path = pathlib.Path(name)
    if path.suffix != ".json":
        near = nearest(name, names())
        check(name in names(), f"'{name}' is no map{f': {near} is the nearest' if near else ''} "
              f"({', '.join(names())}, or the path of a JSON file)")
        source = importlib.resources.files("lockstep") / "maps" / f"{name}.json"
    else:
        check(path.is_file(), f"{path} is not there: a map was wanted")
        source = path
    try:
        content = json.loads(source.read_text())
    except (ValueError, RecursionError) as error:
        raise LockstepError(f"{name} is no JSON ({error}): a map was wanted") from error
    check(isinstance(content, dict), f"{name} is no JSON object: a map was wanted")
    return content


def _rule(entry: Mapping[str, Any], name: str) -> Rule:
    to = entry["to"]
    targets = (to,) if isinstance(to, str) else tuple(to)
    for point in targets:
        near = nearest(point, AXES)
        check(point in AXES or "\\" in point, f"the map {name} names '{point}', which is no point: "
              + (f"{near} is the nearest" if near else "lockstep points lists them"))
    return Rule(re.compile(entry["match"]), targets, tuple(entry.get("split", ())),
                entry.get("layer_offset", 0), entry.get("layer") == "last")


def _schema(schema: Any) -> Mapping[str, str]:
    from lockstep.contracts import rounding
    return rounding(schema) if isinstance(schema, str) else dict(schema)
