"""`torch.compile` with this backend: what runs natively, what falls back; both are right."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs ansorlite[torch]")

from torch_cases import assert_equal, nn, rand  # noqa: E402

import ansorlite as al  # noqa: E402
from ansorlite.pytorch import backend  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def natively(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were compiled."""
    made: list[Any] = []

    def recorded(graph: Any, **options: Any) -> Any:
        made.append(graph)
        return al.auto_schedule(graph, **options)

    monkeypatch.setattr(backend, "auto_schedule", recorded)
    return made


def fast(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=al.torch_backend, **options)


def mlp() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


def test_a_module_runs_natively(natively: list[Any]) -> None:
    module, x = mlp(), rand(2, 4)
    quick = fast(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert_equal(quick(x), module(x))
    assert len(natively) == 1
    assert len(natively[0].constants) >= 4


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_fused_layers_of_transformers(norm_first: bool, natively: list[Any]) -> None:
    torch.manual_seed(0)
    options = {"batch_first": True, "norm_first": norm_first}
    module = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", **options).eval()
    x, gone = rand(2, 5, 8), torch.tensor([[False, False, True, True, True], [False] * 5])
    assert_equal(fast(module)(x, src_key_padding_mask=gone), module(x, src_key_padding_mask=gone))
    assert len(natively) == 1


def test_the_backend_goes_by_its_name() -> None:
    from torch._dynamo.backends.registry import lookup_backend

    if "ansorlite" not in torch.compiler.list_backends(exclude_tags=()):
        pytest.skip("the installed package has no entry point of this name: install it again")
    assert lookup_backend("ansorlite") is al.torch_backend


@pytest.mark.parametrize("biases", [False, True])
def test_lstms_run_natively_where_torch_hands_them_over(biases: bool, natively: list[Any]) -> None:
    from torch._dynamo import config

    torch.manual_seed(0)
    module = nn.LSTM(4, 3, bidirectional=True, batch_first=True, bias=biases).eval()
    with config.patch(allow_rnn=True), warnings.catch_warnings():
        warnings.filterwarnings("error", message="ansorlite")
        (got, last), (want, ends) = fast(module)(rand(2, 5, 4)), module(rand(2, 5, 4))
    assert_equal((got, *last), (want, *ends))
    assert len(natively) == 1


def test_parameters_that_change_count(natively: list[Any]) -> None:
    module, x = mlp(), rand(2, 4)
    quick = fast(module)
    quick(x)
    module[0].weight.mul_(2)
    assert_equal(quick(x), module(x))
    assert len(natively) == 2


def test_other_shapes_are_compiled_anew(natively: list[Any]) -> None:
    module = mlp()
    quick = fast(module)
    for n in (2, 3, 5, 3):
        assert_equal(quick(rand(n, 4)), module(rand(n, 4)))
    assert len(natively) == 3


def test_a_graph_break_leaves_two_native_parts(natively: list[Any]) -> None:
    def broken(x: Any) -> Any:
        y = torch.tanh(x) * 2
        if y.sum() > 0:
            return y + x
        return y - x * 3

    quick = fast(broken)
    for x in (rand(3, 4), -rand(3, 4).abs(), rand(3, 4).abs()):
        assert_equal(quick(x), broken(x))
    assert len(natively) >= 2


def test_what_is_not_supported_runs_in_eager_mode_with_one_warning(natively: list[Any]) -> None:
    def solved(x: Any) -> Any:
        return torch.linalg.qr(x)[1] + 1

    quick, x = fast(solved), rand(3, 3)
    with pytest.warns(UserWarning, match=r"eager mode: .*aten\.linalg_qr") as found:
        assert_equal(quick(x), solved(x))
        assert_equal(quick(x * 2), solved(x * 2))
    assert len([w for w in found if "ansorlite" in str(w.message)]) == 1
    assert not natively


def test_gradients_are_left_to_eager_mode(natively: list[Any]) -> None:
    module, x = mlp(), rand(2, 4)
    quick = fast(module)
    with torch.enable_grad(), pytest.warns(UserWarning, match=r"torch\.no_grad"):
        quick(x).sum().backward()
    assert module[0].weight.grad is not None
    assert not natively
    assert_equal(quick(x), module(x))
    assert len(natively) == 1


def test_changes_in_place_are_made(natively: list[Any]) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            self.total.add_(x.sum(0))
            x.mul_(2)
            return x + self.total, x.view(-1)

    ours, theirs = Counter(), Counter()
    quick = fast(ours)
    for _ in range(3):
        a, b = rand(3, 4), rand(3, 4)
        got, wanted = quick(a), theirs(b)
        assert_equal(got, wanted)
        assert_equal(a, b)
        assert_equal(ours.total, theirs.total)
        got[1].zero_()
        assert not a.any(), "the second result is a view of the argument"
    assert len(natively) == 1


def test_two_modules_of_one_class_keep_their_weights() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    x = rand(2, 4)
    for module in (Layer(), Layer()):
        assert_equal(fast(module)(x), module(x))


def test_options_reach_the_search(natively: list[Any]) -> None:
    module, x = mlp(), rand(2, 4)
    assert_equal(fast(module, options={"n_trials": 0, "seed": 3})(x), module(x))
    torch.compiler.reset()
    with pytest.raises(Exception, match="trials"):
        fast(module, options={"trials": 3})(x)
    torch.compiler.reset()
    with pytest.raises(Exception, match="mode='max-autotune' is not for this backend"):
        fast(module, mode="max-autotune")(x)


def test_inference_mode(natively: list[Any]) -> None:
    module, x = mlp(), rand(2, 4)
    with torch.inference_mode():
        assert_equal(fast(module)(x), module(x))
    assert len(natively) == 1
