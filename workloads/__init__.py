"""Operators and networks to tune: shapes as data, definitions as code.

`workload` gives a case of the operator suite as a `SearchTask`, `network` a network as a `Graph`.
"""

from .networks import network
from .ops import parse_case, workload

__all__ = ["network", "parse_case", "workload"]
