"""Types for annotations of scripted functions, as `torch.jit.annotations` has them."""

from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: UP035

__all__ = ["Any", "Dict", "List", "Optional", "Tuple", "Union"]
