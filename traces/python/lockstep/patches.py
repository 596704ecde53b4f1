"""What capture puts in the place of parts of transformers, for a while."""
from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def modeling_of(module: nn.Module) -> types.ModuleType:
    """The file of transformers that the module's class stands in."""
    return sys.modules[type(module).__module__]


@contextlib.contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """An attribute is another one for a while; one that was only its class's is deleted again."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


class AttentionFunctions:
    """In the place of transformers' table of attention functions: puts one around each of them."""

    def __init__(self, inner: Any,
                 wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.inner, self.wrap = inner, wrap
        self._wrapped: dict[Any, Callable[..., Any]] = {}  # by what it is around

    def get_interface(self, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        found = self.inner.get_interface(name, default)
        if found not in self._wrapped:  # each layer asks in each pass
            self._wrapped[found] = self.wrap(found)
        return self._wrapped[found]


Seen = Callable[[Tensor, Tensor, Tensor], None]  # of a product's x, weight and result


class SeenLinears(TorchFunctionMode):
    """Sees the products within eager experts, which are calls of a function and no modules."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
                           ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is nn.functional.linear:
            self.seen(args[0], args[1], result)
        return result
