"""`SearchTask` from tensors, from a DAG, and without a target."""

import dataclasses
import pickle

import pytest

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.target import Target
from ansorlite.task import SearchTask

AVX2 = Target.cross("x86-avx2")


def _scaled(name: str, factor: float = 2.0) -> te.Tensor:
    a = te.placeholder((4, 3), name="A")
    return te.compute((4, 3), lambda i, j: a[i, j] * factor + 1.0, name=name)


def test_tensors_and_dag_make_the_same_task() -> None:
    tensor = _scaled("B")
    dag = te.ComputeDAG([tensor])
    tasks = [SearchTask(x, AVX2) for x in (tensor, [tensor], (tensor,), dag)]
    assert all(t == tasks[0] for t in tasks)
    assert tasks[0].dag == dag
    assert [x.name for x in tasks[0].inputs] == ["A"]
    assert tasks[0].flop == dag.flop == 24.0


def test_names() -> None:
    b, c = _scaled("B"), _scaled("C")
    assert SearchTask([b, c], AVX2).name == "B+C"
    assert SearchTask(b, AVX2, "scale").name == "scale"
    assert SearchTask(b, AVX2).workload_key == SearchTask(c, AVX2, "other").workload_key
    assert SearchTask(b, AVX2).workload_key != SearchTask(_scaled("B", 3.0), AVX2).workload_key


def test_the_host_is_the_target_unless_one_is_given() -> None:
    assert SearchTask(_scaled("B")).target == Target.detect()
    assert SearchTask(_scaled("B"), AVX2).target is AVX2


def test_frozen_printed_and_pickled() -> None:
    task = SearchTask(_scaled("B"), AVX2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(task, "name", "other")  # noqa: B010 (that it fails is the point)
    assert pickle.loads(pickle.dumps(task)) == task
    assert str(task).startswith("SearchTask B (24.0 FLOP) on Target(haswell")
    assert str(task).endswith("return B\n")


def test_what_is_no_computation() -> None:
    with pytest.raises(ModelError, match="output A is a placeholder"):
        SearchTask(te.placeholder((4,), name="A"), AVX2)
    with pytest.raises(ModelError, match="at least one output"):
        SearchTask([], AVX2)
