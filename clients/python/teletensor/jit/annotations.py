"""Types for the annotations of scripted functions, as in `torch.jit.annotations`."""

from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: UP035

__all__ = ["Any", "Dict", "List", "Optional", "Tuple", "Union"]
