"""Part of the step `compile`: what was found for tasks -> the object code of a network's kernels.

In: a partition, a result a task and the form that it computes. Out: an image for each kernel, also
those whose operands are parts of larger values (`graph.in_place`): the same programs, other rows.
"""

from collections.abc import Sequence

from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.object_cache import compiled
from ansorlite.graph.partition import Partition, kernels
from ansorlite.graph.places import Widths
from ansorlite.ir.pitch import pitched
from ansorlite.ir.program import Program
from ansorlite.schedule.lower import lower
from ansorlite.search.result import TuneResult
from ansorlite.space.plain import plain_state
from ansorlite.task import SearchTask


def compile_tasks(
    parts: Partition, results: Sequence[TuneResult], forms: Sequence[int]
) -> list[KernelImage]:
    """The kernels of a network, from the results of its tasks and the forms that they compute."""
    known = kernels(parts)
    return [compile_task(results[k.task], k.widths(parts, forms[k.task])) for k in known]


def compile_task(result: TuneResult, widths: Widths = ((), ())) -> KernelImage:
    """Object code of a task's best (or predicted) program; else of the plain schedule.

    `widths`, as in `DistinctKernel.widths`, tell where its operands are parts of larger values.
    """
    alone = not any(w for own in widths for w in own)
    if alone and result.image is not None:
        return result.image
    return compiled(in_rows(task_program(result), widths), result.task.target)


def in_rows(program: Program, widths: Widths) -> Program:
    """A task's program for operands whose axes are longer in memory."""
    read = [b.name for b in program.params if b.role in ("input", "constant")]
    written = [b.name for b in program.params if b.role == "output"]
    pairs = [*zip(read, widths[0], strict=False), *zip(written, widths[1], strict=False)]
    return pitched(program, {name: w for name, w in pairs if w is not None})


def task_program(result: TuneResult) -> Program:
    """A task's best (or predicted) program; else the plain schedule."""
    if result.best is None and result.predicted is None:
        return lower(plain_state(result.task.dag, result.task.target))
    return result.program


def plain_image(task: SearchTask, widths: Widths = ((), ())) -> KernelImage:
    program = lower(plain_state(task.dag, task.target))
    return compiled(in_rows(program, widths), task.target)
