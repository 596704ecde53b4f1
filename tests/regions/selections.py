"""What a trace keeps, and who is then judged together: from the graph, by code of our own."""
from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

import cases  # noqa: F401  puts the folders of the cases into the path
from trace_file import Node, Place, place_order

ENDS = frozenset({"embed", "final.norm", "logits", "token"})
EXPERTS = frozenset({"mlp.router", "mlp.experts", "mlp.weights", "mlp.expert_gate",
                     "mlp.expert_up", "mlp.expert_act", "mlp.expert_down", "mlp.combine"})
# Points that are kept of each selection; None: all.
SELECTIONS: dict[str, frozenset[str] | None] = {
    "all": None,
    # Every other point of a layer.
    "half": ENDS | {"attn.norm", "attn.k", "attn.q_norm", "attn.q_rope", "attn.v", "attn.out",
                    "attn.residual", "mlp.gate", "mlp.act", "mlp.residual"} | EXPERTS,
    # Outputs of Python modules, which forward hooks alone see.
    "modules": ENDS | {"attn.norm", "attn.q", "attn.k", "attn.v", "attn.q_norm", "attn.k_norm",
                       "attn.o", "mlp.norm", "mlp.gate", "mlp.up", "mlp.down", "mlp.router",
                       "mlp.experts", "mlp.weights", "mlp.combine"},
    "six": ENDS | {"attn.norm", "attn.q", "attn.out", "attn.residual", "mlp.norm",
                   "mlp.residual"},
    "streams": (ENDS - {"final.norm"}) | {"attn.residual", "mlp.residual"},
}


class Regions:
    """Which hidden places a recorded one is judged together with."""

    def __init__(self, graph: Iterable[Node], kept: Collection[str] | None) -> None:
        nodes = list(graph)
        self.places: list[Place] = sorted(((node.layer, node.point) for node in nodes),
                                          key=place_order)
        self.inputs: Mapping[Place, list[Place]] = {
            (node.layer, node.point): [(nodes[i].layer, nodes[i].point) for i in node.inputs]
            for node in nodes}
        self.kept = {place for place in self.places if kept is None or place[1] in kept}
        # A cache whose writers nobody saw is a list of hashes of unknown numbers.
        self.seen = {place for place in self.kept if place[1] != "attn.kv"
                     or all(read in self.kept for read in self.inputs[place])}

    def of(self, place: Place) -> set[Place]:
        """The hidden places between a recorded one and what was recorded before it."""
        found: set[Place] = set()
        ahead = [place]
        while ahead:
            for read in self.inputs[ahead.pop()]:
                if read not in self.seen and read not in found:
                    found.add(read)
                    ahead.append(read)
        return found

    def hold(self, place: Place, wrong: Collection[Place]) -> bool:
        """Whether an op that is wrong is that place's own, or in its region."""
        return place in wrong or not self.of(place).isdisjoint(wrong)


@dataclasses.dataclass(frozen=True)
class Suspects:
    """The recorded places that may be named of a bug, and which of them comes first."""

    first: tuple[int, Place] | None
    all: frozenset[tuple[int, Place]]


def suspects(regions: Regions, wrong: Collection[tuple[int, Place]]) -> Suspects:
    """`wrong`: pass and place of each op that did not make what its inputs say.

    What a cache holds was computed in this or an earlier pass, so that a hidden op before a cache
    is a suspect in later passes too.
    """
    passes = {number for number, _ in wrong}
    named: set[tuple[int, Place]] = set()
    for number in range(min(passes, default=0), max(passes, default=-1) + 1):
        now = {place for n, place in wrong if n == number}
        before = {place for n, place in wrong if n <= number and written(regions, place)}
        named |= {(number, place) for place in regions.seen if regions.hold(place, now | before)}
    first = min(named, key=lambda at: (at[0], place_order(at[1])), default=None)
    return Suspects(first, frozenset(named))


def written(regions: Regions, place: Place) -> bool:
    """Whether a hidden place goes into a cache that was not seen either."""
    cache = (place[0], "attn.kv")
    return cache in regions.inputs and cache not in regions.seen and \
        place not in regions.seen and (place == cache or place in regions.of(cache))
