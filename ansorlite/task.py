"""A search task: one computation on one target.

In: a ComputeDAG, or the output tensors of one, and a `Target` (the host's where none is given).
Out: a frozen `SearchTask`, which the search space, the cost model, the runner and the records take.
Tasks with the same workload key on the same target share measurements, whatever their names.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ansorlite.errors import ModelError
from ansorlite.names import shown
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import Operation, Placeholder, Tensor
from ansorlite.units import format_flop


@dataclass(frozen=True, init=False)
class SearchTask:
    """`dag` on `target`; `name` is for people (the names of the outputs where none is given).

    A task may be another form of a computation, such as Winograd's of a convolution: then results
    are checked against `meaning`, by the relative tolerance `rtol`.
    """

    dag: ComputeDAG
    target: Target
    name: str
    meaning: ComputeDAG | None
    rtol: float | None

    def __init__(
        self,
        dag: ComputeDAG | Tensor | Sequence[Tensor],
        target: Target | None = None,
        name: str = "",
        meaning: ComputeDAG | None = None,
        rtol: float | None = None,
    ) -> None:
        """Raises ModelError if the tensors make no ComputeDAG (a placeholder as output, say), or
        if inputs and outputs of `meaning` are not views of those of `dag` with the same names."""
        if not isinstance(dag, ComputeDAG):
            dag = ComputeDAG([dag] if isinstance(dag, Tensor) else dag)
        object.__setattr__(self, "dag", dag)
        object.__setattr__(self, "target", Target.detect() if target is None else target)
        object.__setattr__(self, "name", name or "+".join(dag.output_names))
        object.__setattr__(self, "meaning", meaning)
        object.__setattr__(self, "rtol", rtol)
        if meaning is not None and _interface(meaning) != _interface(dag):
            raise ModelError(f"{self.name}: inputs and outputs are no views of its meaning's")

    @property
    def plain(self) -> "SearchTask":
        """The task that this one is another form of, else itself: what results are held against."""
        return self if self.meaning is None else SearchTask(self.meaning, self.target, self.name)

    @property
    def workload_key(self) -> str:
        """Hash of the computation's structure, the same for any names."""
        return self.dag.workload_key

    @property
    def flop(self) -> float:
        """Floating-point operations of one execution; of other forms, those of their meaning."""
        return (self.meaning or self.dag).flop

    @property
    def inputs(self) -> tuple[Placeholder, ...]:
        """The placeholders, in the order in which a kernel takes its arrays."""
        return self.dag.inputs

    def __str__(self) -> str:
        form = "" if self.meaning is None else ", another form"
        head = f"SearchTask {shown(self.name)} ({format_flop(self.flop)}{form}) on {self.target}"
        return f"{head}\n{self.dag}"


def _interface(dag: ComputeDAG) -> dict[str, tuple[int, str]]:
    """(number of elements, dtype) of inputs and outputs, by name."""
    ends: list[Operation] = [*dag.inputs, *dag.outputs]
    return {op.name: (math.prod(op.shape), op.dtype) for op in ends}
