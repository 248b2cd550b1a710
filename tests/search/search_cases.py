"""Tiny tasks, builders and runners for the tests of the search; some of them fail on purpose.

`Pretender` builds nothing, and its latency is a function of the program alone, so runs can be
compared. `Saboteur` builds real kernels and makes chosen requests fail; `build` is the entry
function of its workers.
"""

import hashlib
import os
import pickle
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ansorlite import te
from ansorlite.codegen.build import BuildRequest, build_request
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.image import KernelImage
from ansorlite.measure.builder import BuildOutcome, PoolBuilder
from ansorlite.measure.peak import Peak
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import CheckSpec, LocalRunner, PrepareResult
from ansorlite.target import Target
from ansorlite.task import SearchTask

PEAK = Peak(2e11, 1e11, 2e10)


def matmul(n: int = 32, names: str = "ABCk", name: str = "") -> SearchTask:
    """relu(A x B) with n x n matrices, B a constant."""
    a = te.placeholder((n, n), name=names[0])
    b = te.placeholder((n, n), name=names[1], constant=True)
    k = te.reduce_axis(n, name=names[3])
    product = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=names[2])
    return SearchTask([te.relu(product)], name=name)


def matmul_form(n: int, plain: SearchTask) -> SearchTask:
    """Another form of a `matmul` with the default names, which doubles A first and halves C."""
    a = te.placeholder((n, n), name="A")
    b = te.placeholder((n, n), name="B", constant=True)
    k = te.reduce_axis(n, name="k")
    twice = te.compute((n, n), lambda i, j: a[i, j] * 2.0, name="twice")
    product = te.compute((n, n), lambda i, j: te.sum(twice[i, k] * b[k, j], axis=k), name="D")
    half = te.compute((n, n), lambda i, j: product[i, j] * 0.5, name="C")
    return SearchTask([te.relu(half)], name=plain.name, meaning=plain.dag, rtol=1e-3)


def vector(n: int = 8) -> SearchTask:
    """x + 1: a space of a few dozen candidates."""
    x = te.placeholder((n,), name="X")
    return SearchTask([te.compute((n,), lambda i: x[i] + 1, name="Y")])


class Pretender:
    """Builder and runner of programs that never run: latencies from 1 to 2 ms by their values.

    `fails` are the statuses of some of them (every third one, by its values), in turn.
    """

    def __init__(self, fails: Sequence[Status] = ()) -> None:
        self.fails = fails
        self.built = self.ran = 0

    def share(self, key: str, value: object) -> None: ...
    def unshare(self, key: str) -> None: ...
    def close(self) -> None: ...

    def build(self, requests: Sequence[Any]) -> list[BuildOutcome]:
        self.built += len(requests)
        return [BuildOutcome(Status.OK, pretended(r), "", 0.01) for r in requests]

    def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult:
        return PrepareResult(True)

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        self.ran += 1
        number = int.from_bytes(hashlib.sha256(image.object_bytes).digest()[:4])
        if self.fails and number % 3 == 0:
            status = self.fails[number // 3 % len(self.fails)]
            return MeasureResult(status, error=f"it is number {number}")
        latency_s = 1e-3 * (1 + number / 2**32)
        return MeasureResult(Status.OK, latency_s, (latency_s,))


def pretended(request: BuildRequest) -> KernelImage:
    # By position, so that the result does not depend on names.
    code = pickle.dumps([request.program.partition("/")[2][:2], list(request.values.values())])
    return KernelImage(code, "kernel", (), request.target.triple, request.target.cpu)


# ---- kernels and workers that misbehave ---------------------------------------------------------

SEGFAULT = """
define void @kernel(ptr %args) {
  store volatile float 0.0, ptr null
  ret void
}
"""
ENDLESS = """
define void @kernel(ptr %args) {
entry:
  br label %spin
spin:
  %x = load volatile ptr, ptr %args
  br label %spin
}
"""
IDLE = """
define void @kernel(ptr %args) {
  ret void
}
"""
KERNELS = {"segfault": SEGFAULT, "endless": ENDLESS, "wrong": IDLE}
SOON_S, LATE_S = 0.3, 60.0
BUILDS = ("worker killed", "worker hangs", "worker raises")


@dataclass(frozen=True)
class Sabotaged:
    """A request whose worker fails in the way of `fault`, one of BUILDS."""

    fault: str


def build(request: Any, shared: Mapping[str, Any]) -> KernelImage:
    """Entry function of the workers of `Saboteur`."""
    if not isinstance(request, Sabotaged):
        return build_request(request, shared)
    match request.fault:
        case "worker killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "worker hangs":
            time.sleep(1000)
    raise ValueError("it was to fail")


class Saboteur(PoolBuilder):
    """A builder; the k-th request after the plain schedule has the fault `faults[k]` ("": none)."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__(1, entry="search_cases:build")
        self.faults = ["", *faults]

    def build(self, requests: Sequence[Any]) -> list[BuildOutcome]:
        faults = [self.faults.pop(0) if self.faults else "" for _ in requests]
        return [self._one(r, f) for r, f in zip(requests, faults, strict=True)]

    def _one(self, request: Any, fault: str) -> BuildOutcome:
        # What hangs is given up soon; a build that is to succeed is not, on a busy machine either.
        self._timeout_s = SOON_S if fault == "worker hangs" else LATE_S
        (outcome,) = super().build([Sabotaged(fault) if fault in BUILDS else request])
        if fault in KERNELS and outcome.image:
            return replace(outcome, image=_spoiled(outcome.image, fault))
        return outcome


class Impatient(LocalRunner):
    """Gives up `SOON_S` after the start of an endless kernel, and much later with others."""

    def __init__(self) -> None:
        super().__init__(LATE_S, n_threads=1)

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        endless = image.object_bytes == _spoiled(image, "endless").object_bytes
        self._timeout_s = SOON_S if endless else LATE_S
        return super().run(task_key, image, best_latency_s)


def _spoiled(image: KernelImage, fault: str) -> KernelImage:
    return replace(image, object_bytes=_code(fault), symbol="kernel", has_steps=False)


@cache
def _code(fault: str) -> bytes:
    return compile_module(KERNELS[fault], Target.detect())
