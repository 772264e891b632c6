"""Adapters for other libraries. Each module requires its library, and must be imported by its own name."""

__all__: list[str] = []
