"""Processes that come back to an elastic world, and the state that they receive."""
