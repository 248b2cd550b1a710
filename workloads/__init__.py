"""Operators and networks to tune: shapes as data, definitions as code."""
