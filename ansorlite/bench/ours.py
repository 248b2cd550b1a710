"""This project's contender: a program of a tuning log, constants packed ahead of time."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ansorlite.codegen.kernel import Kernel


def prepare(spec: dict[str, Any]) -> tuple[Callable[[], Any], str]:
    """The call of a case {case, batch, log, trial} and the name of the sketch it runs."""
    from ansorlite.codegen.kernel import Kernel
    from ansorlite.records import for_task, read_log
    from ansorlite.search.recorded import record_program, record_sketch
    from ansorlite.workloads import workload

    task = workload(spec["case"], batch=spec["batch"])
    records = for_task(read_log(spec["log"]).records, task.workload_key, task.target.fingerprint)
    found = [r for r in records if r.ok and r.trial == spec["trial"]]
    if not found:
        raise ValueError(f"no trial {spec['trial']} of {task.name} in {spec['log']}")
    record = found[-1]
    return prepared(Kernel(record_program(task, record), task.target)), record_sketch(task, record)


def prepared(kernel: "Kernel") -> Callable[[], Any]:
    """A call of a kernel as users make it: arrays as numpy makes them, constants bound before."""
    rng = np.random.default_rng(0)
    values = {p.name: rng.standard_normal(p.shape).astype(p.dtype) for p in kernel.inputs}
    constants = {p.name for p in kernel.inputs if p.role == "constant"}
    bound = kernel.bind(**{name: values[name] for name in constants})
    arrays = [values[p.name] for p in bound.inputs]
    return lambda: bound(*arrays)
