"""This project's contender, as users call it: arrays as numpy makes them, constants bound before.

In: an operator {case, batch, log, trial}, a network {model, log, options}
(an ONNX file; options of `auto_schedule`), or a saved network
{folder}. Out: the call, and the sketch of the kernel or the number of kernels.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ansorlite.codegen.kernel import Kernel

Prepared = tuple[Callable[[], Any], str]


def prepare(options: dict[str, Any]) -> Prepared:
    """(the call on random data, what runs)."""
    if "case" in options:
        return _operator(options)
    if "model" in options:
        return _network(options)
    return _saved(options["folder"])


def _operator(options: dict[str, Any]) -> Prepared:
    from ansorlite.codegen.kernel import Kernel
    from ansorlite.records import for_task, read_log
    from ansorlite.search.recorded import record_program, record_sketch
    from ansorlite.workloads import workload

    task, trial = workload(options["case"], batch=options["batch"]), options["trial"]
    records = read_log(options["log"]).records
    found = for_task(records, task.workload_key, task.target.fingerprint)
    record = next((r for r in reversed(found) if r.ok and r.trial == trial), None)
    if record is None:
        raise ValueError(f"no trial {trial} of {task.name} in {options['log']}")
    kernel = Kernel(record_program(task, record), task.target)
    return kernel_call(kernel), record_sketch(task, record)


def kernel_call(kernel: "Kernel", values: Mapping[str, Any] | None = None) -> Callable[[], Any]:
    """A call of a kernel on arrays, by default random ones; constants are bound ahead of time."""
    rng = np.random.default_rng(0)
    if values is None:
        values = {p.name: rng.standard_normal(p.shape).astype(p.dtype) for p in kernel.inputs}
    constants = {p.name for p in kernel.inputs if p.role == "constant"}
    bound = kernel.bind(**{name: values[name] for name in constants})
    arrays = [values[p.name] for p in bound.inputs]
    return lambda: bound(*arrays)


def _network(options: dict[str, Any]) -> Prepared:
    import ansorlite as al
    from ansorlite.graph.inputs import random_inputs

    graph = al.load_onnx(options["model"])
    known = {"log": options["log"], "progress": False, **options.get("options", {})}
    module = al.auto_schedule(graph, n_trials=0, **known)
    inputs = random_inputs(graph)
    return lambda: module(*inputs), f"{len(module.partition.subgraphs)} kernels"


def _saved(folder: str) -> Prepared:
    from ansorlite.deployed import load_module

    net, rng = load_module(folder), np.random.default_rng(0)
    known = net.metadata["inputs"]
    inputs = [rng.standard_normal(v["shape"]).astype(v["dtype"]) for v in known]
    return lambda: net(*inputs), "saved"
