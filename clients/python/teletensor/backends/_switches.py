"""Objects whose attributes are switches."""

from __future__ import annotations

from typing import Any

__all__ = ["Switches"]


class Switches:
    """Named switches: each accepts values of the type of its initial value."""

    def __init__(self, where: str, **values: Any) -> None:
        object.__setattr__(self, "_where", where)
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = object.__getattribute__(self, "_values")
        if name in values:
            return values[name]
        raise AttributeError(f"{object.__getattribute__(self, '_where')}: Unknown attribute {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        known = getattr(self, name)
        if type(value) is not type(known):
            raise RuntimeError(f"{self._where}.{name} expects a {type(known).__name__}, "
                               f"but got {type(value).__name__}")
        self._values[name] = value

    def __dir__(self) -> list[str]:
        return list(self._values)
