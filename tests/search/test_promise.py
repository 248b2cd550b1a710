"""Forms that are worth measuring: by prediction, and whatever a log answers for."""

from types import SimpleNamespace
from typing import Any

import pytest

from ansorlite import te
from ansorlite.graph.ops.bilinear import correlation, strided
from ansorlite.graph.ops.conv import conv_nhwc
from ansorlite.graph.ops.winograd import fast_conv_nhwc
from ansorlite.search import tune_tasks
from ansorlite.search.promise import predicted_cycles, promising
from ansorlite.search.transfer import KnownPrograms
from ansorlite.search.tune_tasks import WeightedTask
from ansorlite.target import Target
from ansorlite.task import SearchTask

TARGET = Target.cross("x86-avx512", cores=2)


def forms_of(
    size: int, channels: int, taps: tuple[int, int], *tiles: tuple[int, int], stride: int = 1
) -> list[SearchTask]:
    """A convolution as written and in tiles; 0: an axis as written."""
    x = te.placeholder((1, size, size, channels), name="x")
    w = te.placeholder((*taps, channels, channels), name="w", constant=True)
    pads, strides = tuple(((k - 1) // 2,) * 2 for k in taps), (stride,) * 2
    plain = te.ComputeDAG([conv_nhwc(x, w, strides, pads, (1, 1))])
    out = [SearchTask(plain, TARGET)]
    for tile in tiles:
        axes = [strided(m, k, stride) if m else None for m, k in zip(tile, taps, strict=True)]
        dag = te.ComputeDAG([fast_conv_nhwc(x, w, pads, axes, strides)])
        out.append(SearchTask(dag, TARGET, "", plain, 1e-3))
    return out


@pytest.mark.parametrize(
    ("size", "channels", "taps", "tiles", "stride", "kept"),
    [
        (56, 64, (3, 3), [(4, 4), (2, 2)], 1, [0, 1]),  # fewer products, data in the caches
        (14, 256, (3, 3), [(4, 4), (2, 2)], 1, [0, 1]),
        (7, 512, (3, 3), [(4, 4), (2, 2)], 1, [0, 2]),  # weights come from memory
        (17, 192, (1, 7), [(0, 2), (0, 4)], 1, [0, 2]),
        (28, 64, (3, 3), [(4, 4)], 2, [0]),  # the transforms cost what the products save
    ],
)
def test_which_forms_are_promising(
    size: int,
    channels: int,
    taps: tuple[int, int],
    tiles: list[tuple[int, int]],
    stride: int,
    kept: list[int],
) -> None:
    forms = forms_of(size, channels, taps, *tiles, stride=stride)
    found = promising(forms)
    assert [forms.index(f) for f in found] == kept
    assert predicted_cycles(forms[0]) > 0


def test_one_form_that_is_no_transform_is_left_alone() -> None:
    plain = forms_of(8, 4, (3, 3))[0]
    x = te.placeholder((4,), name="x")
    other = SearchTask(te.relu(x, "y"), TARGET)
    assert promising([plain, other]) == [plain, other]
    assert promising([plain]) == [plain]


def test_a_form_without_promise_counts_where_the_log_answers_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert correlation(4, 3).products == 6
    plain, four, two = forms_of(7, 512, (3, 3), (4, 4), (2, 2))
    monkeypatch.setattr(tune_tasks, "Forms", lambda tuners, *more: list(tuners))
    known: set[SearchTask] = set()
    session: Any = SimpleNamespace(
        searches=True,
        untuned=None,
        searcher=SimpleNamespace(template=False),
        tuner=lambda task: task,
        answered=lambda task: task in known,
        budget=SimpleNamespace(timeout=None),
        known=lambda target: KnownPrograms(()),
    )
    weighted = WeightedTask(plain, 1.0, "", (four, two))
    assert tune_tasks._forms(session, weighted) == [plain, two]
    known.add(four)
    assert tune_tasks._forms(session, weighted) == [plain, four, two]
    session.searches = False
    assert tune_tasks._forms(session, weighted) == [plain, four]
