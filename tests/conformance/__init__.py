"""A conformance kit for daemons: `python -m tests.conformance ADDRESS` (docs/wire.md)."""
