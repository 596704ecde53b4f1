"""What a bug is: where it first shows, what it needs, and how it gets into a model."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch import nn

from patches import Patch
from trace_file import MODEL_POINTS, Place


# Which a model of experts does not have.
DENSE_POINTS = {"mlp.gate", "mlp.up", "mlp.act", "mlp.down"}


@dataclasses.dataclass(frozen=True)
class Bug:
    """A way to compute something wrong, in one layer or in all.

    apply(model, layers) makes the patch. Needs are of: qk_norm, bias, experts, dense, 16 bits,
    fp32, chunks (a prefill in several passes), gqa, square (a query projection of as many rows as
    columns).
    """

    name: str
    point: str
    apply: Callable[[nn.Module, list[int]], Patch]
    story: str
    needs: frozenset[str] = frozenset()
    everywhere: bool = False

    def layers(self, model: nn.Module) -> list[int]:
        """All layers, or one in the middle."""
        count = model.config.num_hidden_layers
        return list(range(count)) if self.everywhere else [count // 2]

    def place(self, model: nn.Module) -> Place:
        """Where it shows first."""
        return (-1 if self.point in MODEL_POINTS else self.layers(model)[0]), self.point

    def possible(self, model: nn.Module, dtype: str) -> bool:
        dense = {"dense"} if self.point in DENSE_POINTS else set()
        return fits(self.needs | dense, model, dtype)


def fits(needs: frozenset[str], model: nn.Module, dtype: str) -> bool:
    """Whether the model, computing in that type, has all that is needed."""
    attn = model.model.layers[0].self_attn
    experts = hasattr(model.model.layers[0].mlp, "experts")
    rows, columns = attn.q_proj.weight.shape
    has = {"qk_norm": hasattr(attn, "q_norm"), "bias": attn.q_proj.bias is not None,
           "experts": experts, "dense": not experts, "16 bits": dtype != "fp32",
           "fp32": dtype == "fp32", "chunks": True, "square": rows == columns,
           "gqa": attn.num_key_value_groups > 1 and model.config.num_key_value_heads > 1}
    return all(has[need] for need in needs)


def bug(point: str, story: str, *needs: str, everywhere: bool = False):
    """Makes a bug of a function of (model, layers), named after the function."""
    def make(function: Callable[[nn.Module, list[int]], Patch]) -> Bug:
        name = function.__name__.replace("_", "-")
        return Bug(name, point, function, story, frozenset(needs), everywhere)
    return make
