"""Meshes: one program that drives the sessions of several ranks (`connect_mesh`)."""

from ._mesh import Mesh, connect_mesh
from ._per_rank import PerRank
from ._rank import Rank

__all__ = ["Mesh", "PerRank", "Rank", "connect_mesh"]
