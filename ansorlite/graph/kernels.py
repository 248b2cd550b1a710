"""Part of the step `compile`: what was found for tasks -> the object code of a network's kernels.

In: a partition, a result a task and the form that it computes. Out: an image for each kernel, also
those whose operands are parts of larger values (`graph.in_place`): the same programs, other rows.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.object_cache import compiled
from ansorlite.graph.partition import Partition, kernels
from ansorlite.graph.places import Widths
from ansorlite.ir.pitch import pitched
from ansorlite.ir.program import Program
from ansorlite.schedule.lower import lower
from ansorlite.search.result import TuneResult
from ansorlite.space.plain import plain_state
from ansorlite.target import Target
from ansorlite.task import SearchTask


class Wanted(NamedTuple):
    """One kernel: the result of its task, and where its operands are parts of larger values.

    `widths` as in `DistinctKernel.widths`.
    """

    result: TuneResult
    widths: Widths = ((), ())

    @property
    def image(self) -> KernelImage | None:
        """Object code that there is; None where the kernel is to be compiled."""
        alone = not any(w for own in self.widths for w in own)
        return self.result.image if alone else None

    @property
    def program(self) -> Program:
        """Of the task's best (or predicted) program, else the plain schedule."""
        return in_rows(task_program(self.result), self.widths)


Compile = Callable[[Sequence[tuple[Program, Target]]], list[KernelImage]]


def compile_here(programs: Sequence[tuple[Program, Target]]) -> list[KernelImage]:
    """One after the other, in this process."""
    return [compiled(program, target) for program, target in programs]


def compile_tasks(
    parts: Partition,
    results: Sequence[TuneResult],
    forms: Sequence[int],
    compile_all: Compile = compile_here,
) -> list[KernelImage]:
    """The kernels of a network, from the results of its tasks and the forms that they compute."""
    known = kernels(parts)
    wanted = [Wanted(results[k.task], k.widths(parts, forms[k.task])) for k in known]
    return compile_wanted(wanted, compile_all)


def compile_wanted(
    wanted: Sequence[Wanted], compile_all: Compile = compile_here
) -> list[KernelImage]:
    """Object code of kernels; `compile_all` compiles those that there is none of yet."""
    images = [w.image for w in wanted]
    missing = [k for k, image in enumerate(images) if image is None]
    made = compile_all([(wanted[k].program, wanted[k].result.task.target) for k in missing])
    new = dict(zip(missing, made, strict=True))
    return [new[k] if image is None else image for k, image in enumerate(images)]


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
