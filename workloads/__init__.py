"""Operators and networks to tune: shapes as data, definitions as code."""

from .networks import network
from .ops import workload

__all__ = ["network", "workload"]
