"""This project's contender: the best program of a tuning log, constants packed ahead of time."""

from collections.abc import Callable
from typing import Any

import numpy as np


def prepare(spec: dict[str, Any]) -> tuple[Callable[[], Any], str]:
    """The call of a case {case, batch, log} and the name of the sketch it runs."""
    from ansorlite.codegen.kernel import Kernel
    from ansorlite.codegen.loader import resident_copy, resident_empty
    from ansorlite.records import best, read_log
    from ansorlite.search.tuner import record_program, record_sketch
    from ansorlite.workloads import workload

    task = workload(spec["case"], batch=spec["batch"])
    record = best(read_log(spec["log"]).records, task.workload_key, task.target.fingerprint)
    if record is None:
        raise ValueError(f"no program of {task.name} in {spec['log']}")
    kernel = Kernel(record_program(task, record), task.target)
    rng = np.random.default_rng(0)
    values = {
        p.name: resident_copy(rng.standard_normal(p.shape).astype(p.dtype)) for p in kernel.inputs
    }
    constants = {p.name for p in kernel.inputs if p.role == "constant"}
    bound = kernel.bind(**{name: values[name] for name in constants})
    out = tuple(resident_empty(p.shape, p.dtype) for p in bound.outputs)
    call = bound.prepare(*(values[p.name] for p in bound.inputs), out=out)
    return call, record_sketch(task, record)
