"""Figures as people read them: seconds, FLOP, FLOP/s and shares in a few characters.

Progress lines, tables and reports print with these functions. In: numbers in SI units. Out: text of
bounded width, three or four digits and a unit. An unknown number (None, NaN, infinity) is a dash,
never "nan".
"""

import math

UNKNOWN = "-"
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def format_latency(seconds: float | None) -> str:
    """0.00123 -> "1.230 ms"; four digits in ns, us, ms or s."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
        # 999.96 ns would print as 1000.0 ns.
        if abs(seconds) < 999.95 * scale:
            return f"{_digits(seconds / scale, 4)} {unit}"
    return f"{_digits(seconds, 4)} s"


def format_seconds(seconds: float | None) -> str:
    """How long something takes a person: "0.3 s", "42 s", "3 min 05 s", "2 h 07 min"."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_flop(flop: float | None) -> str:
    """2.68e8 -> "268 MFLOP"; three digits."""
    return _with_prefix(flop, "FLOP")


def format_flop_rate(flop_per_s: float | None) -> str:
    """1.87e11 -> "187 GFLOP/s"; three digits."""
    return _with_prefix(flop_per_s, "FLOP/s")


def format_gflops(flop_per_s: float | None) -> str:
    """FLOP/s as a bare number of GFLOP/s, for columns: 1.87e11 -> "187.0"."""
    if flop_per_s is None or not math.isfinite(flop_per_s):
        return UNKNOWN
    return f"{flop_per_s / 1e9:.1f}"


def format_share(share: float | None) -> str:
    """0.934 -> "93 %"; below 10 % one decimal."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    return f"{share * 100:.1f} %" if abs(share) < 0.0995 else f"{share * 100:.0f} %"


def format_bytes(size_bytes: float | None) -> str:
    """123456 -> "120.6 KiB"; one decimal."""
    if size_bytes is None or not math.isfinite(size_bytes):
        return UNKNOWN
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def rate(flop: float | None, seconds: float | None) -> float | None:
    """FLOP/s; None where either is unknown or there is no FLOP."""
    if not flop or not seconds or not math.isfinite(seconds):
        return None
    return flop / seconds


def share(value: float | None, whole: float | None) -> float | None:
    """value / whole; None where either is unknown or the whole is 0."""
    return None if value is None or not whole else value / whole


def _with_prefix(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for scale, prefix in _PREFIXES:
        # The limit is where three digits round up to the next prefix.
        if abs(value) >= 0.9995 * scale:
            return f"{_digits(value / scale, 3)} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def _digits(value: float, digits: int) -> str:
    """`digits` significant digits without an exponent; whole numbers keep all their digits."""
    before = len(str(int(abs(float(f"{value:.{digits}g}")))))
    return f"{value:.{max(0, digits - before)}f}"
