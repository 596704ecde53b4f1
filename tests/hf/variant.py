"""What a variant is: another right way to compute the same model, and which rounding it has."""
from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

from torch import nn

from bug import fits
from capture import Plan
from patches import Patch

NORMS = ("attn.norm", "attn.q_norm", "attn.k_norm", "mlp.norm", "final.norm")
ROPES = ("attn.q_rope", "attn.k_rope")


@dataclasses.dataclass(frozen=True)
class Variant:
    """Computes nothing wrong. `rounding` is what to declare besides Hugging Face's own.

    Needs are those of a Bug; attention is the one that it is of, or both. Where `lacks`, points
    are left out of the trace: then it is not to be judged clean, but inconclusive.
    """

    name: str
    story: str
    patch: Callable[[nn.Module], Patch] = lambda _model: contextlib.nullcontext()
    rounding: dict[str, str] = dataclasses.field(default_factory=dict)
    plan: Callable[[Plan], Plan] = lambda plan: plan
    cache: Callable[[nn.Module], object] = lambda _model: None
    provenance: dict[str, str] = dataclasses.field(default_factory=dict)
    attention: tuple[str, ...] = ("sdpa", "eager")
    needs: frozenset[str] = frozenset()
    lacks: bool = False

    def possible(self, model: nn.Module, dtype: str) -> bool:
        attention = model.config._attn_implementation in self.attention
        return attention and fits(self.needs, model, dtype)


def declared(points: tuple[str, ...] | str, rounding: str) -> dict[str, str]:
    return dict.fromkeys((points,) if isinstance(points, str) else points, rounding)
