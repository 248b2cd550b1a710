"""Benchmarks against peers: every contender in a process of its own, timed in turn."""
