"""Features (step `features` of the flow): program with holes + population -> float32[P, S, F].

One row per statement (store) of each candidate, for all candidates at once: loop extents, index
coefficients and counts are expressions over holes, evaluated on int64[P] columns. A filled program
gives the same numbers with P = 1. Populations of several programs are evaluated together
(`features_of`): numpy is called as often for many as for one. Groups of features as in the Ansor
paper (appendix B): computation, buffer access, arithmetic intensity, allocation, outer scope.
Additional features describe the hardware's view: register tile, vector fill, balance of the
parallel grains, and bytes moved per cache level. Magnitudes are given as log2(1 + x), with x in
bytes, elements or executions.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.cost.analytic import cycles, rates_of
from ansorlite.cost.footprint import Levels, Traffic, traffic
from ansorlite.cost.names import AT, COMPUTE, CURVE, FEATURE_NAMES, LOGGED, MAX_BUFFERS, N_FEATURES
from ansorlite.cost.planned import PlannedStatements, Population, evaluated
from ansorlite.cost.sheet import Sheet
from ansorlite.cost.statement import Statement
from ansorlite.ir.expr import Const
from ansorlite.ir.program import Program, Store, all_buffers, stores_under
from ansorlite.ir.tape import Values
from ansorlite.target import Target

Features = npt.NDArray[np.float32]
_TESTS = [AT["compare"], AT["select"]]


class FeaturePlan:
    """The static part of feature extraction: accesses of a program with their index coefficients.

    Built once per program; calling the plan evaluates the features of a population.
    """

    def __init__(self, program: Program) -> None:
        found = list(stores_under(program.body))
        main = [(s, loops) for s, loops in found if not _is_initialisation(s)] or found
        buffers = {b.name: b for b in all_buffers(program)}
        memory = {b.name for b in program.params}
        self.statements = [Statement.of(s, loops, buffers, memory) for s, loops in main]
        self._planned: dict[Target, PlannedStatements] = {}

    def __call__(self, columns: Mapping[str, Any], n: int, target: Target) -> Features:
        """float32[n, S, N_FEATURES]; `columns` gives int64[n] per hole variable."""
        return features_of([self.population(columns, n, target)], target)[0]

    def population(self, columns: Mapping[str, Any], n: int, target: Target) -> Population:
        """Candidates, to be evaluated together with those of other plans."""
        return Population(self.planned(target), columns, n)

    def planned(self, target: Target) -> PlannedStatements:
        """What is evaluated, for one target."""
        if target not in self._planned:
            self._planned[target] = PlannedStatements(self.statements, target)
        return self._planned[target]

    def effort(self, columns: Mapping[str, Any], n: int, target: Target) -> Values | None:
        """float64[S, n]: vector operations of one of each statement's, see `analytic.cycles`.

        None where all of them count as one, as without packed products.
        """
        return self.planned(target).effort(columns, n)

    def magnitudes(self, columns: Mapping[str, Any], n: int, target: Target) -> Values:
        """float64[S, N_FEATURES, n]: features that the analytic score reads, without logarithms.

        Rows of other features are 0.
        """
        population = self.population(columns, n, target)
        return evaluated([population], N_FEATURES, lambda sheet: _magnitudes(sheet, target)[0])[0]


def features(program: Program, columns: Mapping[str, Any], n: int, target: Target) -> Features:
    """float32[n, S, N_FEATURES] (names: `cost.names`) of a population of one program.

    `columns` gives int64[n] per hole variable. Example: `features(sketch.program, columns, n,
    target)`.
    """
    return FeaturePlan(program)(columns, n, target)


def features_of(populations: Sequence[Population], target: Target) -> list[Features]:
    """float32[n, S, N_FEATURES] of each population."""
    out = []
    for found in evaluated(populations, N_FEATURES, lambda sheet: _features(sheet, target)):
        work = found[:, AT["work_share"]]
        if len(work):
            work /= np.maximum(work.sum(axis=0), 1.0)
        out.append(np.ascontiguousarray(found.transpose(2, 0, 1), dtype=np.float32))
    return out


def cycles_of(populations: Sequence[Population], target: Target) -> list[Values]:
    """float64[S, n] of each population: cycles of each statement by the analytic estimate."""

    def total(sheet: Sheet) -> Values:
        return _cycles(_magnitudes(sheet, target)[0], sheet, target)[-1:]

    return [found[:, 0] for found in evaluated(populations, 1, total)]


def _is_initialisation(s: Store) -> bool:
    """True for the initialisation of a reduction, whose cost is part of the reduction's."""
    return isinstance(s.value, Const) and s.combiner is None


def _features(sheet: Sheet, target: Target) -> Values:
    """[N_FEATURES, n]: all features; "work_share" is the work instead of its share."""
    out, levels, moved = _magnitudes(sheet, target)
    _put(out, "buffer0_read", _access_features(sheet, levels, moved, target))
    _put(out, "intensity_0", _intensity(sheet, levels, moved))
    _put(out, "alloc_bytes", _allocation(sheet))
    _put(out, "cycles_compute", _cycles(out, sheet, target))
    rows = _logged(sheet.accesses)
    logged = out[rows]
    np.maximum(logged, 0.0, out=logged)
    logged += 1.0
    out[rows] = np.log2(logged, out=logged)
    return out


@lru_cache(maxsize=64)
def _logged(accesses: int) -> npt.NDArray[np.intp]:
    """The magnitudes that are not 0 for want of accesses."""
    absent = tuple(f"buffer{b}_" for b in range(accesses, MAX_BUFFERS))
    return np.array([k for k in LOGGED if not FEATURE_NAMES[k].startswith(absent)], np.intp)


def _cycles(magnitudes: Values, sheet: Sheet, target: Target) -> Values:
    """[len(CYCLES) + 1, n], see `analytic.cycles`."""
    return cycles(lambda name: magnitudes[AT[name]], rates_of(target), sheet["effort"])


def _magnitudes(sheet: Sheet, target: Target) -> tuple[Values, Levels, Traffic]:
    """[N_FEATURES, n]: the features that the analytic score reads, without logarithms."""
    levels = Levels(sheet)
    moved = traffic(sheet, levels, target)
    executions = sheet["executions"]
    out = np.zeros((N_FEATURES, sheet.n))
    np.multiply(sheet["ops"], executions, out=out[: len(COMPUTE)])
    out[_TESTS] *= sheet["tested"]
    _put(out, "rows", sheet["loop"])
    grains = out[AT["parallel_grains"]]
    out[AT["parallel_balance"]] = grains / (np.ceil(grains / target.cores) * target.cores)
    out[AT["parallel_share"]] = np.minimum(grains, target.cores) / target.cores
    _put(out, "inner_reduction", _reductions(sheet, levels))
    out[AT["executions"]] = executions
    out[AT["loops"]] = levels.runs.sum(axis=0)
    _put(out, "beyond_l1", moved.into * (executions / np.maximum(levels.inside[0], 1.0)))
    out[AT["gathered"]] = executions * sheet["gathered"]
    out[AT["register_loads"]] = sheet["register_loads"]
    out[AT["work_share"]] = executions * sheet["flops"]
    return out, levels, moved


def _put(rows: Values, first: str, values: Sequence[Values] | Values) -> None:
    """Write consecutive features, starting at feature `first`."""
    at = AT[first]
    rows[at : at + len(values)] = values


def _reductions(sheet: Sheet, levels: Levels) -> tuple[Values, Values]:
    """Iterations of the innermost group of reduction loops, and those of the others.

    Loops of the register tile may lie inside the group.
    """
    reduces = sheet["reduce"] > 0
    trips = np.where(reduces, levels.extents, 1.0)
    summing = levels.runs & reduces
    tiles = levels.runs & (sheet["tile"] > 0)
    closing = levels.runs & ~reduces & ~tiles
    inner, outer = np.ones((2, sheet.n))
    in_group, seen = np.ones(sheet.n, dtype=bool), np.zeros(sheet.n, dtype=bool)
    for k in range(levels.depth - 1, -1, -1):
        np.multiply(inner, trips[k], out=inner, where=in_group)
        np.multiply(outer, trips[k], out=outer, where=~in_group)
        in_group &= ~(closing[k] | (tiles[k] & seen))
        seen |= summing[k]
    return inner, outer


def _access_features(sheet: Sheet, levels: Levels, moved: Traffic, target: Target) -> Values:
    """[MAX_BUFFERS * features, n]: the written buffer first, then the others by unique bytes."""
    n, executions, item = sheet.n, sheet["executions"], sheet["item"]
    reads, writes, elements = sheet["reads"], sheet["writes"], moved.elements
    run = sheet["last"][0]
    stride = np.zeros(run.shape)  # of the innermost loop that runs
    for k in range(levels.depth):
        np.copyto(stride, sheet["steps"][k], where=levels.runs[k])
    line = target.cache_line
    unique, total = elements * item, executions * item
    lines = np.maximum(1.0, executions * np.minimum(1.0, stride * item / line))
    unique_lines = np.maximum(1.0, elements / np.maximum(1.0, np.minimum(run, line / item)))
    # Reuse: the innermost loop that does not move the address repeats the accesses of its inner
    # loops.
    level = levels.innermost(levels.runs[:, None] & (sheet["steps"] <= 0))
    by_loop = level >= 0
    other_uses = sheet["other_uses"]
    by_serial = ~by_loop & (other_uses > 0)
    count = np.where(by_serial, other_uses, 0.0)
    if levels.depth:
        count = np.where(by_loop, _at(levels.extents, level), count)
    inside = level + 1  # of no loop: everything is inside
    used = by_loop | by_serial
    iterations = np.where(used, _at(levels.inside, inside), 0.0)
    distance = np.where(used, _at(moved.bytes_at, inside), 0.0)
    per = np.where(count > 0.5, 1.0 / np.maximum(count, 0.5), 2.0)
    by_buffer = np.stack(
        [
            reads,
            writes,
            total,
            unique,
            lines,
            unique_lines,
            by_loop,
            by_serial,
            ~used,
            iterations,
            distance,
            count,
            total * per,
            unique * per,
            lines * per,
            unique_lines * per,
            stride,
            run,
        ]
    )  # [features, accesses, n]
    by_buffer *= sheet["real"]
    flat = by_buffer.reshape(len(by_buffer), -1)
    order = np.argsort(-(unique * sheet["real"] + 1e18 * writes), axis=0, kind="stable")
    out = np.zeros((MAX_BUFFERS, len(flat), n))
    for rank, chosen in enumerate(order[:MAX_BUFFERS]):
        flat.take(chosen * n + np.arange(n), axis=1, out=out[rank], mode="clip")
    return out.reshape(-1, n)


def _at(values: Values, level: npt.NDArray[np.intp]) -> Values:
    """values[level[..., n], n] for values of shape [levels, n]; any value for a level below 0."""
    n = values.shape[1]
    place = level * n
    place += np.arange(n)
    picked: Values = values.reshape(-1).take(place, mode="clip")
    return picked


def _intensity(sheet: Sheet, levels: Levels, moved: Traffic) -> Values:
    """Arithmetic intensity curve: FLOP per byte at CURVE equidistant points of log work.

    The curve joins the points (work inside a loop level, work / bytes touched inside) from inner to
    outer levels by straight lines. A loop of one iteration repeats a point and changes nothing.
    """
    per_trip = sheet["executions"] * sheet["flops"] / np.maximum(levels.inside[0], 1.0)
    work = (per_trip * levels.inside)[::-1]
    x = np.log2(1.0 + work)  # [points, n], non-decreasing
    y = np.log2(1.0 + work / np.maximum(moved.bytes_at[::-1], 1.0))
    at = np.maximum(x[-1], 1e-9) * (np.arange(1, CURVE + 1)[:, None] / CURVE)
    right = np.zeros(at.shape, np.intp)
    for point in x[:-1]:
        right += point < at
    left = np.maximum(right - 1, 0)
    x0, x1, y0, y1 = _at(x, left), _at(x, right), _at(y, left), _at(y, right)
    t = np.clip((at - x0) / np.where(x1 > x0, x1 - x0, 1.0), 0.0, 1.0)
    curve: Values = y0 + t * (y1 - y0)
    return curve


def _allocation(sheet: Sheet) -> Values:
    """Bytes of the local buffer that is filled, elements in total, fills, executions per fill."""
    size, executions = sheet["filled"], sheet["executions"]
    outer = executions / np.maximum(sheet["own"], 1.0)
    inner = executions / np.maximum(outer, 1.0)
    found = np.stack([size * sheet["filled_item"], size * outer, outer, inner])
    return found * (sheet["filled_item"] > 0)
