"""Operators and networks to tune: shapes are data (ops.toml), definitions are code.

`workload` returns a case of the operator suite as a `SearchTask`, `network` a network as a `Graph`.
Examples: `al.tune(al.workload("C2D", 2))`, `al.auto_schedule(al.network("resnet18"))`.
"""

from .networks import network
from .ops import parse_case, workload

__all__ = ["network", "parse_case", "workload"]
