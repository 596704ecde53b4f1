"""How a tensor of a dump is read when it is wanted."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

Load = Callable[[], Any]  # a torch tensor, a numpy array or Elements; None: it is none
