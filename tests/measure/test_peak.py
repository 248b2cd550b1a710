"""The machine's measured limits: results of the kernels, and the cache of figures."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from ansorlite.calls import aligned_copy
from ansorlite.codegen import openmp
from ansorlite.codegen.dot import vector_dots
from ansorlite.codegen.loader import load_image
from ansorlite.codegen.microbenchmarks import (
    READS,
    copy_kernel,
    dot_kernel,
    fma_accumulators,
    fma_kernel,
    read_kernel,
)
from ansorlite.errors import AnsorliteError
from ansorlite.ir.packed import DOTS, PACKED
from ansorlite.measure import peak
from ansorlite.measure.peak import Peak
from ansorlite.presets import PRESETS
from ansorlite.target import Target

SOME = Peak(
    2e11,
    1e11,
    2e10,
    {op: 4e11 for op in vector_dots(Target())},
    {op: 2e11 for op in vector_dots(Target())},
)


@pytest.fixture
def cache_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    peak.measure_peak.cache_clear()
    yield peak.peak_file()
    peak.measure_peak.cache_clear()


def test_fma_kernel_does_the_counted_operations() -> None:
    target = Target(cores=3)
    lanes = target.lanes("float32")
    work = aligned_copy(np.array([5, 3], np.int64))
    operands = aligned_copy(np.repeat(np.array([[3.0], [1.0]], np.float32), lanes, axis=1))
    out = aligned_copy(np.zeros((3, lanes), np.float32))
    load_image(fma_kernel(target)).run([work, operands, out])
    sums = np.arange(fma_accumulators(target), dtype=np.float32)
    for _ in range(5):
        sums = sums * 3 + 1
    threads = 1 if openmp.runtime().is_serial else 3
    assert (out[:threads] == sums.sum()).all() and not out[threads:].any()


@pytest.mark.parametrize("op", DOTS)
def test_dot_kernels_do_the_counted_operations(op: str) -> None:
    """Also where the target has no instruction: the same sums by steps."""
    target = Target(cores=3)
    lanes, depth = target.lanes("float32"), PACKED[op].depth
    work = aligned_copy(np.array([5, 3], np.int64))
    two = {"dot_bf16": 0x40004000, "dot_u8s8": 0x02020202}[op]
    operands = aligned_copy(np.full((2, lanes), two, np.int32))
    out = aligned_copy(np.zeros((3, lanes), PACKED[op].dtype))
    load_image(dot_kernel(target, op)).run([work, operands, out])
    sums = np.arange(fma_accumulators(target)) + 5 * depth * 4
    threads = 1 if openmp.runtime().is_serial else 3
    assert (out[:threads] == sums.sum()).all() and not out[threads:].any()
    _, flop = peak.dot_run(target, op, 1, 0.0001)
    assert flop % (2 * depth * lanes * fma_accumulators(target)) == 0


def test_figures_without_dot_products_are_completed(
    cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of an earlier version keeps its figures and gets those that it lacks."""
    target = Target(cores=77)
    entry = {k: v for k, v in asdict(SOME).items() if not k.startswith("dots")}
    cache_file.parent.mkdir(parents=True)
    cache_file.write_text(json.dumps({target.fingerprint: entry}))
    monkeypatch.setattr(peak, "vector_dots", lambda target: ("dot_bf16",))
    monkeypatch.setattr(peak, "run_dots", lambda *_: ({"dot_bf16": 4e11}, {"dot_bf16": 2e11}, True))
    wanted = replace(SOME, dots_all={"dot_bf16": 4e11}, dots_one={"dot_bf16": 2e11})
    assert peak.measure_peak(target) == peak.cached_peak(target) == wanted


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_copy_kernel_covers_every_vector_once(threads: int) -> None:
    target = Target(cores=threads)
    lanes = target.lanes("float32")
    n = 101 * lanes
    work = aligned_copy(np.array([100, threads, 2], np.int64))
    x = aligned_copy(np.arange(n, dtype=np.float32))
    y = aligned_copy(np.full(n, -1, np.float32))
    load_image(copy_kernel(target, n)).run(
        [work, aligned_copy(np.full(lanes, 2, np.float32)), x, y]
    )
    np.testing.assert_array_equal(y[:-lanes], 2 * x[:-lanes])
    assert (y[-lanes:] == -1).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_read_kernel_reads_every_vector_the_given_number_of_times(threads: int) -> None:
    target = Target(cores=threads)
    lanes = target.lanes("float32")
    n = 11 * READS * lanes
    work = aligned_copy(np.array([10, threads, 2], np.int64))
    x = aligned_copy(np.arange(n, dtype=np.float32))
    out = aligned_copy(np.zeros((threads, lanes), np.float32))
    load_image(read_kernel(target, n)).run([work, x, out])
    assert out.sum() == 2 * x[: -READS * lanes].sum()


@pytest.mark.parametrize("preset", PRESETS)
def test_kernels_compile_for_other_machines(preset: str) -> None:
    target = Target.cross(preset, cores=4)
    for image in (fma_kernel(target), copy_kernel(target, 1024), read_kernel(target, 1024)):
        begin = b"\xcf\xfa\xed\xfe" if target.system == "darwin" else b"\x7fELF"
        assert image.cpu == target.cpu and image.object_bytes[:4] == begin
    assert fma_accumulators(target) + 2 <= target.vector_registers


def test_benchmarks_give_positive_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "RUN_S", 0.001)
    monkeypatch.setattr(peak, "REPEATS", 3)
    monkeypatch.setattr(peak, "ATTEMPTS", 1)
    measured, _ = peak.run_benchmarks(replace(Target(), l3_bytes=0))
    assert all(math.isfinite(v) and v > 1e6 for v in measured.figures)
    assert set(measured.dots_all) == set(measured.dots_one) == set(vector_dots(Target()))
    assert "GFLOP/s" in str(measured)
    assert Peak.from_json(json.loads(json.dumps(asdict(measured)))) == measured


def test_a_steady_figure_is_kept_for_the_next_process(
    cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak, "run_benchmarks", lambda target: (SOME, True))
    assert peak.measure_peak(Target()) == SOME
    other = replace(SOME, flops_all=9e11)
    monkeypatch.setattr(peak, "run_benchmarks", lambda target: (other, True))
    assert peak.measure_peak(Target()) == SOME  # this process remembers
    peak.measure_peak.cache_clear()
    assert peak.measure_peak(Target()) == SOME  # the file remembers
    assert peak.measure_peak(Target(cores=77)) == other
    assert set(json.loads(cache_file.read_text())) == {
        Target().fingerprint,
        Target(cores=77).fingerprint,
    }


def test_a_figure_from_a_busy_machine_is_not_kept(
    cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak, "run_benchmarks", lambda target: (SOME, False))
    assert peak.measure_peak(Target()) == SOME
    assert not cache_file.exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"%s": {"flops_all": 1}}', '{"%s": 3}', "nan"])
def test_a_damaged_file_is_measured_over(
    text: str, cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_file.parent.mkdir(parents=True)
    cache_file.write_text(text.replace("%s", Target().fingerprint))
    monkeypatch.setattr(peak, "run_benchmarks", lambda target: (SOME, True))
    assert peak.measure_peak(Target()) == SOME
    assert json.loads(cache_file.read_text()) == {Target().fingerprint: asdict(SOME)}


def test_a_folder_that_cannot_be_written_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(peak, "run_benchmarks", lambda target: (SOME, True))
    peak.measure_peak.cache_clear()
    assert peak.measure_peak(Target()) == SOME
    peak.measure_peak.cache_clear()


def test_another_machine_is_refused() -> None:
    foreign = Target.cross("aarch64-neon" if Target().arch == "x86_64" else "x86-avx2")
    with pytest.raises(AnsorliteError, match=f"cannot measure {foreign.cpu}"):
        peak.measure_peak(foreign)
    with pytest.raises(AnsorliteError, match="vectors of 128 B"):
        peak.measure_peak(Target(vector_bytes=128))


def test_a_short_run_takes_what_a_busy_machine_showed_before(
    cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def busy(target: Target, attempts_: int, *_: object) -> tuple[Peak, bool]:
        attempts.append(attempts_)
        return SOME, False

    monkeypatch.setattr(peak, "run_benchmarks", busy)
    target = Target.detect()
    assert peak.peak_soon(target) == SOME
    assert peak.peak_soon(target) == SOME
    assert attempts == [1]
    assert peak.cached_peak(target) is None  # other runs measure again


@pytest.mark.parametrize("steady", [True, False])
def test_a_look_later_raises_limits_that_were_too_low(
    steady: bool, cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, shown = Target.detect(), SOME
    monkeypatch.setattr(peak, "run_benchmarks", lambda *_: (shown, steady))
    monkeypatch.setattr(peak, "vector_dots", lambda target: tuple(SOME.dots_all))
    low = replace(SOME, flops_all=1e11)
    cache_file.parent.mkdir(parents=True)
    cache_file.write_text(json.dumps({target.fingerprint: asdict(low)}))
    assert peak.measure_peak(target) == low
    shown = replace(low, flops_all=1.005e11, copy_bytes_per_s=1e9)  # 1 % is noise, less is no limit
    assert peak.seen_again(target, low) is low
    shown = replace(SOME, copy_bytes_per_s=1e9)
    assert peak.seen_again(target, low) == SOME
    assert peak.measure_peak(target) == SOME
    assert peak.cached_peak(target) == SOME  # and other processes know it


def test_a_short_run_measures_the_packed_products_that_it_needs(
    cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def benchmarks(
        target: Target, attempts: int, ops: Sequence[str], run_s: float
    ) -> tuple[Peak, bool]:
        asked.append(list(ops))
        dots = dict.fromkeys(ops, 4e11)
        return replace(SOME, dots_all=dots, dots_one=dots), True

    monkeypatch.setattr(peak, "run_benchmarks", benchmarks)
    monkeypatch.setattr(peak, "vector_dots", lambda target: ("dot_bf16", "dot_u8s8"))
    target = Target.detect()
    assert not peak.peak_soon(target, ("",)).dots_all
    assert not peak.peak_soon(target).dots_all  # what the file has is enough
    assert set(peak.peak_soon(target, ("", "dot_u8s8")).dots_all) == {"dot_u8s8"}
    assert asked == [[], ["dot_u8s8"]]
