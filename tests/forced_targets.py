"""The host as what it is, and without its dot-product instructions: x86-64-v3, x86-64-v4."""

from ansorlite.target import Target

_HOST = Target.detect()
_FORCED = [Target.host_as(name) for name in ("x86-avx2", "x86-avx512") if _HOST.has_masks]
TARGETS = [_HOST, *(t for t in _FORCED if t.vector_bytes <= _HOST.vector_bytes)]
