"""Readers of signal processing: DFT, STFT, windows, the weights of mel bands.

In: a `Context` and an `OnnxNode` with constant lengths. Out: a product with a constant matrix, the
transforms of all unit vectors; windows and weights are constants. The matrix has (length x length)
elements: beyond MOST_ELEMENTS a transform is refused.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode, Reader, axis_of

MOST_ELEMENTS = 1 << 26  # of the matrix of a transform
Weights = Any  # float64[inputs, outputs]


def _complex(rows: Any, parts: int) -> Any:
    """Rows [.., length, parts] as numbers, real where there is one part."""
    return rows[..., 0] if parts == 1 else rows[..., 0] + 1j * rows[..., 1]


def _matrix(
    c: Context, size: int, parts: int, length: int, inverse: bool, onesided: bool
) -> tuple[Weights, int, int]:
    """(float64[size * parts, bins * out], bins, out) with `out` parts of a result."""
    bins = length // 2 + 1 if onesided and not inverse else length
    out = 1 if onesided and inverse else 2
    elements = size * parts * bins * out
    if length < 1 or elements > MOST_ELEMENTS:
        raise ModelError(
            f"a transform of {size} numbers to {bins}: its matrix has {elements} elements, more "
            f"than the limit of {MOST_ELEMENTS}: cut the signal into shorter frames"
        )
    c.room([size * parts, bins, out, 4], np.float64)
    units = _complex(np.eye(size * parts).reshape(-1, size, parts), parts)
    if inverse and onesided:
        found = np.fft.irfft(units, n=length, axis=1)[..., None]
    else:
        full = (np.fft.ifft if inverse else np.fft.fft)(units, n=length, axis=1)[:, :bins]
        found = np.stack([full.real, full.imag], axis=-1)
    return found.reshape(size * parts, bins * out), bins, out


def _parts(c: Context, x: str) -> int:
    """Numbers of an element along the last axis: a real one, or real and imaginary part."""
    shape = c.shape(x)
    if len(shape) < 2 or shape[-1] not in (1, 2):
        raise ModelError(f"{c.type(x)} has no last axis of 1 (real) or 2 (complex) parts")
    return shape[-1]


def _transformed(c: Context, x: str, weights: Weights, lead: Sequence[int]) -> str:
    """x as rows times the weights: [*lead, outputs]."""
    inputs, outputs = weights.shape
    rows = c.emit("reshape", [x], shape=(math.prod(lead), inputs))
    matrix = c.constant(weights.astype(c.type(x).dtype))
    return c.emit("reshape", [c.emit("matmul", [rows, matrix])], shape=(*lead, outputs))


def dft(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape, parts = c.shape(x), _parts(c, x)
    rank = len(shape)
    given = int(n.attrs.get("axis", 1)) if n.opset < 20 else -2
    given = c.number(n, 2) if n.opset >= 20 and c.has(n, 2) else given
    axis = axis_of(given, rank)
    if axis == rank - 1:
        raise ModelError(f"axis {given} of {c.type(x)} holds real and imaginary parts")
    inverse, onesided = (bool(n.attrs.get(k, 0)) for k in ("inverse", "onesided"))
    default = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    length = c.number(n, 1) if c.has(n, 1) else default
    weights, bins, out = _matrix(c, shape[axis], parts, length, inverse, onesided)
    rest = [d for d in range(rank - 1) if d != axis]
    moved = c.emit("transpose", [x], perm=(*rest, axis, rank - 1))
    value = _transformed(c, moved, weights, [shape[d] for d in rest])
    value = c.emit("reshape", [value], shape=(*(shape[d] for d in rest), bins, out))
    order = [*rest, axis, rank - 1]
    return c.emit("transpose", [value], perm=tuple(order.index(d) for d in range(rank)))


def stft(c: Context, n: OnnxNode) -> str:
    """Frames of the signal, `frame_step` apart, times the window, transformed."""
    x, step = c.operand(n, 0), c.number(n, 1)
    if len(c.shape(x)) == 2:
        x = c.emit("reshape", [x], shape=(*c.shape(x), 1))
    batch, samples, parts = *c.shape(x)[:2], _parts(c, x)
    if len(c.shape(x)) != 3:
        raise ModelError(f"signal {c.type(x)}: batch, samples and parts are needed")
    window = c.operand(n, 2) if c.has(n, 2) else None
    size = samples if window is None else c.type(window).size
    length = c.number(n, 3) if c.has(n, 3) else size
    if (window is not None and c.shape(window) != (length,)) or not 1 <= length <= samples:
        raise ModelError(f"frames of {length} of {samples} samples, a window of {size}")
    if step < 1:
        raise ModelError(f"frame_step {step}: at least 1")
    frames = 1 + (samples - length) // step
    c.room([frames, length])
    places = (np.arange(frames)[:, None] * step + np.arange(length)).astype(np.int64)
    taken = c.emit("take", [x, c.constant(places.ravel())], axis=1)
    taken = c.emit("reshape", [taken], shape=(batch, frames, length, parts))
    onesided = bool(n.attrs.get("onesided", 1))
    weights, bins, out = _matrix(c, length, parts, length, False, onesided)
    if window is not None:
        known = c.known(n, 2)
        if known is None:
            factors = c.emit("reshape", [window], shape=(length, 1))
            taken = c.emit("mul", [taken, factors])
        else:
            weights = weights * np.repeat(known.astype(np.float64), parts)[:, None]
    value = _transformed(c, taken, weights, [batch, frames])
    return c.emit("reshape", [value], shape=(batch, frames, bins, out))


def _dtype(c: Context, n: OnnxNode) -> str:
    return c.dtypes.get(int(n.attrs.get("output_datatype", 1)), "undefined")


def window(of: Callable[[Any], Any]) -> Reader:
    """The window `of(phase)` of a constant size, where the phase goes from 0 to 2 pi."""

    def convert(c: Context, n: OnnxNode) -> str:
        size = c.number(n, 0)
        if size < 0:
            raise ModelError(f"a window of {size} elements")
        c.room([size], cost=16)
        last = size if n.attrs.get("periodic", 1) else size - 1
        phase = 2 * math.pi * np.arange(size) / np.float64(last)
        return c.constant(of(phase).astype(_dtype(c, n)))

    return convert


hann = window(lambda t: 0.5 - 0.5 * np.cos(t))
hamming = window(lambda t: 25 / 46 - 21 / 46 * np.cos(t))
blackman = window(lambda t: 0.42 - 0.5 * np.cos(t) + 0.08 * np.cos(2 * t))


def mel_weight_matrix(c: Context, n: OnnxNode) -> str:
    """[dft_length/2 + 1, bands]: triangles whose corners are equally far apart in mel."""
    bands, length, rate = (c.number(n, k) for k in range(3))
    low, high = (float(c.required(n, k).item()) for k in (3, 4))
    if bands < 0 or length < 0 or rate < 1 or not low >= 0 or not math.isfinite(high):
        raise ModelError(f"{bands} bands of {low} to {high} Hz, {length} samples at {rate} Hz")
    bins = length // 2 + 1
    c.room([bins, bands], np.float64)
    ends = [2595 * math.log1p(f / 700) / math.log(10) for f in (low, high)]
    places = np.arange(bands + 2) * ((ends[1] - ends[0]) / (bands + 2)) + ends[0]
    hertz = 700 * np.expm1(places / 2595 * np.log(10))
    corners = (((length + 1) * hertz) // rate).astype(np.int64)
    if np.any(corners < 0) or np.any(corners >= bins + (bands == 0)):
        raise ModelError(f"bands up to {high} Hz are beyond the {bins} bins at {rate} Hz")
    at, out = np.arange(bins), np.zeros((bins, bands))
    for k in range(bands):
        left, centre, right = (int(v) for v in corners[k : k + 3])
        rising, falling = (left <= at) & (at <= centre), (centre <= at) & (at < right)
        if centre > left:
            out[rising, k] = (at[rising] - left) / (centre - left)
        else:
            out[centre, k] = 1
        if right > centre:
            out[falling, k] = (right - at[falling]) / (right - centre)
    return c.constant(out.astype(_dtype(c, n)))
