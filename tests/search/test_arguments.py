"""Wrong arguments of a tuning run: a UsageError, before anything is started."""

from pathlib import Path
from typing import Any

import pytest
from search_cases import matmul

import ansorlite
import ansorlite.search.session as session_module
from ansorlite.errors import AnsorliteError, UsageError
from ansorlite.search.tune import tune


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("processes were started")

    monkeypatch.setattr(session_module, "PoolBuilder", start)
    monkeypatch.setattr(session_module, "LocalRunner", start)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_trials": None}, "needs a budget"),
        ({"n_trials": "8"}, "n_trials is '8': it must be a whole number"),
        ({"n_trials": 1.5}, "n_trials is 1.5"),
        ({"n_trials": True}, "n_trials is True"),
        ({"n_trials": -1}, "n_trials is -1: it must not be negative"),
        ({"timeout": "x"}, "timeout is 'x'"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": -1}, "timeout is -1: it must not be negative"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"round_size": 0}, "round_size is 0: it must be at least 1"),
        ({"log": 5}, "log is 5: give a path"),
        ({"log": b"log"}, "log is b'log'"),
        ({"log": "a\0b"}, "which is no path of a file"),
        ({"pretrained": 3}, "pretrained is 3"),
        ({"model": "trees"}, "model is 'trees', which has no method predict"),
        ({"runner": 3}, "runner is 3, which has no method run"),
        ({"policy": None}, "no searcher is called None"),
        ({"others": ["GMM:0"], "log": "log"}, "'GMM:0' is no task"),
    ],
)
def test_arguments_of_tune(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as told:
        tune(matmul(), **{"n_trials": 2, "progress": False, **options})
    assert text in str(told.value) and "\n" not in str(told.value)


def test_a_task_is_no_name() -> None:
    with pytest.raises(UsageError, match="'GMM:0' is no task: make one with"):
        tune("GMM:0", 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"network": "resnet18"}, "str is no network: give what load_onnx"),
        ({"network": None}, "NoneType is no network"),
        ({"network": ["resnet18"]}, "str is no network"),
        ({"form_rtol": "x"}, "form_rtol is 'x'"),
        ({"objective": 3}, "objective is 3: give a function"),
        ({"on_round": "f"}, "on_round is 'f'"),
        ({"early_stop_trials": 0}, "early_stop_trials is 0"),
        ({"target": "x86"}, "no target preset 'x86': choose one of x86-avx2"),
        ({"target": 86}, "target is 86: give a Target, a preset's name, or None"),
        ({"trials": 9}, "there is no argument 'trials': choose among n_trials"),
        ({"n_trials": "x"}, "n_trials is 'x'"),
    ],
)
def test_arguments_of_auto_schedule(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as told:
        ansorlite.auto_schedule(**{"network": [], "n_trials": 0, "progress": False, **options})
    assert text in str(told.value)


@pytest.mark.parametrize("name", [3, None, "x", "GMM:-1", "GMM:99", "GMM:" + "9" * 5000])
def test_names_of_workloads(name: Any) -> None:
    with pytest.raises(AnsorliteError):
        ansorlite.workload(name)


@pytest.mark.parametrize("batch", [0, -1, "2", 1.5, None])
def test_batches(batch: Any) -> None:
    for make in (ansorlite.workload, ansorlite.network):
        with pytest.raises(AnsorliteError, match=r"batch of .* is "):
            make("GMM:0" if make is ansorlite.workload else "resnet18", batch=batch)


def test_a_log_in_no_folder(tmp_path: Path) -> None:
    with pytest.raises(AnsorliteError, match="there is no directory"):
        tune(matmul(), 2, log=tmp_path / "none" / "log", progress=False)
