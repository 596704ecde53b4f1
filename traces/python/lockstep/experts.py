"""The points within a layer of experts, whose products are calls of functions and no modules."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.patches import SeenLinears, replaced

POINTS = ("mlp.expert_gate", "mlp.expert_up", "mlp.expert_act", "mlp.expert_down")


class ExpertRows:
    """Sorts the rows of each expert's products by token and choice: [token, choice, ...]."""

    def __init__(self, experts: nn.Module, chosen: Tensor) -> None:
        self.experts, self.chosen = experts, chosen
        self.tensors: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Sees the products of all ways in which transformers computes experts."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(SeenLinears(self._see_one))
            integration = _moe_integration()
            if integration is not None:
                for name, order in (("_batched_linear", self._as_chosen),
                                    ("_grouped_linear", self._by_expert)):
                    inner = getattr(integration, name)
                    stack.enter_context(replaced(integration, name, self._around(inner, order)))
            yield

    def _around(self, inner: Callable[..., Tensor], order: Callable[[], Tensor]
                ) -> Callable[..., Tensor]:
        def look(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            made = inner(x, *args, **kwargs)
            self._place(x, made, order())
            return made
        return look

    def _as_chosen(self) -> Tensor:
        return torch.arange(self.chosen.numel(), device=self.chosen.device)

    def _by_expert(self) -> Tensor:
        """grouped_mm_experts_forward sorts pairs of token and choice so."""
        return torch.sort(self.chosen.reshape(-1))[1]

    def _see_one(self, x: Tensor, weight: Tensor, made: Tensor) -> None:
        """A product of one expert, whose weight is a slice of all experts'."""
        for all_of in (self.experts.gate_up_proj, self.experts.down_proj):
            step = all_of[0].numel() * all_of.element_size()
            expert, rest = divmod(weight.data_ptr() - all_of.data_ptr(), step)
            if rest == 0 and 0 <= expert < len(all_of) and weight.shape == all_of.shape[1:]:
                choice, token = torch.where((self.chosen == expert).T)
                self._place(x, made, token * self.chosen.shape[1] + choice)
                return

    def _place(self, x: Tensor, made: Tensor, pairs: Tensor) -> None:
        """Rows of x and of its product belong to these pairs (token * choices + choice)."""
        inner = self.experts.intermediate_dim
        if x.shape[-1] == inner and made.shape[-1] != 2 * inner:
            self._put("mlp.expert_act", x, pairs)
            self._put("mlp.expert_down", made, pairs)
        else:
            self._put("mlp.expert_gate", made[:, :inner], pairs)
            self._put("mlp.expert_up", made[:, inner:], pairs)

    def _put(self, point: str, rows: Tensor, pairs: Tensor) -> None:
        kept = self.tensors.get(point)
        if kept is None:
            kept = rows.new_zeros(self.chosen.numel(), rows.shape[-1])
            self.tensors[point] = kept
        kept[pairs] = rows.detach()

    def shaped(self, point: str) -> Tensor:
        return self.tensors[point].view(*self.chosen.shape, -1)


def _moe_integration() -> Any:
    try:
        from transformers.integrations import moe
    except ImportError:  # transformers before 5 has eager experts alone
        return None
    return moe if hasattr(moe, "_batched_linear") and hasattr(moe, "_grouped_linear") else None
