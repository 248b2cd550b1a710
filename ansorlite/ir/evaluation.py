"""Evaluation of tapes for populations: many values, many programs and all candidates at once.

In: tapes (`ir.tape`), and for each the hole columns of its `Candidates`. Out: an `Evaluation`, the
values of all of them. Operations of one kind whose operands are known at the same time are executed
together, whichever tapes they belong to: natively (`ir.native_tape`), or by one call of a function
that is known in Python alone.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.errors import AnsorliteError
from ansorlite.ir.native_tape import CODES, PART, operations
from ansorlite.ir.tape import COLUMN, CONSTANT, Arrays, Function, Numbers, Values

ABROAD = -1  # the code of a function that is no native operation


class Candidates(NamedTuple):
    """Candidates of the population number `owner`, from `begin` on.

    `columns` gives int64[n] per hole variable.
    """

    columns: Mapping[str, Any]
    n: int
    owner: int = 0
    begin: int = 0


def blocks(
    populations: Sequence[tuple[Mapping[str, Any], int]], rows: int
) -> list[list[Candidates]]:
    """All candidates of populations (columns and n), at most so many rows in each block."""
    out: list[list[Candidates]] = []
    left = 0
    for owner, (columns, n) in enumerate(populations):
        begin = 0
        while begin < n:
            if not left:
                out.append([])
                left = rows
            size = min(n - begin, left)
            part = columns
            if size < n:
                part = {name: values[begin : begin + size] for name, values in columns.items()}
            out[-1].append(Candidates(part, size, owner, begin))
            begin, left = begin + size, left - size
    return out


class Evaluation:
    """Values of some tapes, each for a population of its own.

    Populations are cut into parts of `PART` candidates: `table`, float64[rows, PART], has a row for
    each part of each value. What is beyond the last candidate is arbitrary.
    """

    def __init__(self, tapes: Sequence[Arrays], candidates: Sequence[Candidates]) -> None:
        """`candidates` of each tape. Raises AnsorliteError for a variable without a column."""
        merged = self._merged = _merged(tuple(tapes))
        self.sizes = tuple(c.n for c in candidates)
        self.parts = tuple(-(-n // PART) for n in self.sizes)
        # Rows are in the order of evaluation.
        counts = np.array(self.parts, np.intp)[merged.tape[merged.order]]
        begins = np.concatenate([[0], np.cumsum(counts)])
        self._first = np.empty(len(counts), np.intp)
        self._first[merged.order] = begins[:-1]
        self.table = np.empty((int(begins[-1]), PART))
        filled = int(begins[len(merged.constants)])
        constants = np.repeat(merged.constants, counts[: len(merged.constants)])
        self.table[:filled] = constants[:, None]
        self._fill_columns(candidates)
        with np.errstate(all="ignore"):
            for native, begin, end in merged.spans:
                if native:
                    self._operate(counts, begins, begin, end)
                else:
                    self._apply(counts, begins, begin)

    def _operate(self, counts: Numbers, begins: Numbers, begin: int, end: int) -> None:
        """Execute runs of native operations; `counts` and `begins` are of rows, in order."""
        merged = self._merged
        arrays = self.table, self._first, begins, counts, merged.operands
        places = [merged.codes[begin:], merged.bounds[begin:]]
        operations()(
            *(a.ctypes.data for a in arrays),
            len(counts),
            *(a.ctypes.data for a in places),
            end - begin,
        )

    def _apply(self, counts: Numbers, begins: Numbers, run: int) -> None:
        """Execute a run of operations by calling its function."""
        merged = self._merged
        fn, arity = merged.calls[run]
        begin, end = merged.bounds[run], merged.bounds[run + 1]
        own, rows = counts[begin:end], slice(begins[begin], begins[end])
        part = np.arange(rows.start, rows.stop) - np.repeat(begins[begin:end], own)
        of = merged.operands[:arity, begin:end]
        self.table[rows] = fn(
            *(self.table.take(np.repeat(self._first[k], own) + part, axis=0) for k in of)
        )

    def _fill_columns(self, candidates: Sequence[Candidates]) -> None:
        for t, number, name in self._merged.columns:
            if name not in candidates[t].columns:
                raise AnsorliteError(f"no value is given for {name}")
            begin = self._first[number]
            row = self.table[begin : begin + self.parts[t]].reshape(-1)
            row[: self.sizes[t]] = candidates[t].columns[name]
            row[self.sizes[t] :] = 1.0

    def rows(self, t: int, numbers: Numbers) -> Numbers:
        """intp[..., parts]: the rows of `table` with these values of tape t."""
        first: Numbers = self._first[self._merged.offsets[t] + numbers]
        return first[..., None] + np.arange(self.parts[t])

    def of(self, t: int, number: int) -> Values:
        """float64[n]: a value of tape t."""
        begin = self._first[self._merged.offsets[t] + number]
        found: Values = self.table[begin : begin + self.parts[t]].reshape(-1)[: self.sizes[t]]
        return found


class _Merged:
    """The values of several tapes in one order of evaluation.

    That order begins with constants and columns; then values by depth, those of one function
    together. Values are numbered tape by tape, from `offsets[t]` on; `tape` is the tape of each.
    `calls` lists (function, number of operands), of values from `bounds[k]` to `bounds[k + 1]` of
    the `order`, `operands` the values that are operands, in that order. `spans` lists (native?,
    first call, last one) of neighbours, with `codes` of native operations. `columns` lists (tape,
    value, name).
    """

    def __init__(self, parts: tuple[Arrays, ...]) -> None:
        lengths = [len(p.depth) for p in parts]
        self.offsets = np.cumsum([0, *lengths])[:-1].tolist()
        self.tape = np.repeat(np.arange(len(parts)), lengths)
        depth = np.concatenate([p.depth for p in parts])
        place: dict[tuple[Function, int], int] = {}
        kinds = []
        for p in parts:
            own = [place.setdefault(call, len(place)) for call in p.functions]
            kinds.append(np.array([*own, CONSTANT, COLUMN], np.intp)[p.kind])  # -2 and -1: last
        kind = np.concatenate(kinds)
        self.order = np.lexsort((kind, depth))
        of_depth, of_kind = depth[self.order], kind[self.order]
        changes = (np.diff(of_depth) != 0) | (np.diff(of_kind) != 0)
        starts = np.flatnonzero(np.concatenate([[True], changes]))
        known = [int(k) for k in starts if of_kind[k] >= 0]
        self.bounds = np.array([*known, len(kind)], np.intp)
        functions = list(place)
        self.calls = [functions[of_kind[k]] for k in known]
        self.codes = np.array([CODES.get(fn, ABROAD) for fn, _ in self.calls], np.int64)
        self.spans = _spans(self.codes != ABROAD)
        offsets = zip(self.offsets, parts, strict=True)
        operands = np.concatenate([p.operands + offset for offset, p in offsets], axis=1)
        self.operands: Numbers = np.ascontiguousarray(operands[:, self.order])
        self.constants = np.concatenate([np.empty(0), *(p.constants for p in parts)])
        self.columns = [
            (t, self.offsets[t] + int(number), name)
            for t, p in enumerate(parts)
            for number, name in zip(np.flatnonzero(p.kind == COLUMN), p.names, strict=True)
        ]


def _spans(native: npt.NDArray[np.bool_]) -> list[tuple[bool, int, int]]:
    """Runs of native calls, and the other calls one by one: (native?, begin, end)."""
    changes = np.flatnonzero(~native[1:] | ~native[:-1]) + 1
    ends = [*changes.tolist(), len(native)]
    return [(bool(native[a]), a, b) for a, b in zip([0, *ends], ends, strict=False) if a < b]


@lru_cache(maxsize=128)
def _merged(tapes: tuple[Arrays, ...]) -> _Merged:
    return _Merged(tapes)
