"""A search task: one computation on one target.

In: a ComputeDAG, or the output tensors of one, and a `Target` (the host's where none is given).
Out: a frozen `SearchTask`, which the search space, the cost model, the runner and the records take.
Tasks with the same workload key on the same target share measurements, whatever their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import Placeholder, Tensor


@dataclass(frozen=True, init=False)
class SearchTask:
    """`dag` on `target`; `name` is for people (the names of the outputs where none is given)."""

    dag: ComputeDAG
    target: Target
    name: str

    def __init__(
        self,
        dag: ComputeDAG | Tensor | Sequence[Tensor],
        target: Target | None = None,
        name: str = "",
    ) -> None:
        """Raises ModelError if the tensors make no ComputeDAG (a placeholder as output, say)."""
        if not isinstance(dag, ComputeDAG):
            dag = ComputeDAG([dag] if isinstance(dag, Tensor) else dag)
        object.__setattr__(self, "dag", dag)
        object.__setattr__(self, "target", Target.detect() if target is None else target)
        object.__setattr__(self, "name", name or "+".join(dag.output_names))

    @property
    def workload_key(self) -> str:
        """Hash of the computation's structure, the same for any names."""
        return self.dag.workload_key

    @property
    def flop(self) -> float:
        """Floating-point operations of one execution."""
        return self.dag.flop

    @property
    def inputs(self) -> tuple[Placeholder, ...]:
        """The placeholders, in the order in which a kernel takes its arrays."""
        return self.dag.inputs

    def __str__(self) -> str:
        return f"SearchTask {self.name} ({self.flop:.4g} FLOP) on {self.target}\n{self.dag}"
