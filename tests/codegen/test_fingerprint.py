"""Fingerprints of arrays: they depend on each bit, on its place and on the size."""

import numpy as np
import pytest

from ansorlite.codegen.fingerprint import PART_BYTES, fingerprint


@pytest.mark.parametrize("n", [0, 1, 7, 15, 16, 17, 1000, PART_BYTES // 4 + 3, 3 * PART_BYTES + 5])
def test_every_bit_counts(n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    known = fingerprint(x)
    assert fingerprint(x.copy()) == known
    memory = np.empty(4 * n + 1, np.uint8)[1:]  # that begins anywhere
    memory[...] = x.view(np.uint8)
    assert fingerprint(memory) == known
    bits = x.view(np.uint32)
    for k in {0, n // 3, n - 1} if n else set():
        for bit in (0, 13, 31):
            bits[k] ^= np.uint32(1 << bit)
            assert fingerprint(x) != known
            bits[k] ^= np.uint32(1 << bit)
    assert fingerprint(x) == known


def test_places_and_sizes_count() -> None:
    x = np.arange(4096, dtype=np.int64)
    for other in (x[::-1].copy(), np.roll(x, 1), np.roll(x, 8), x[:-1], np.append(x, 0)):
        assert fingerprint(other) != fingerprint(x)
    zeros = [fingerprint(np.zeros(n, np.uint8)) for n in (0, 1, 63, 64, 65, 128)]
    assert len(set(zeros)) == len(zeros)
