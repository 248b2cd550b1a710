"""`from_torch`: whole modules become native networks that are called as the modules are."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs ansorlite[torch]")

from torch_cases import assert_equal, compiled, fn, nn, rand  # noqa: E402

import ansorlite as al  # noqa: E402
from ansorlite.graph.build import GraphBuilder  # noqa: E402


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        return x + self.norm(self.first(x)).relu()


class UNet(nn.Module):
    """One level down and up again, with a connection across."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, padding=1)
        self.deep = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, 2)
        self.end = nn.Conv2d(12, 2, 1)

    def forward(self, x: Any) -> Any:
        left = self.down(x).relu()
        low = self.deep(fn.max_pool2d(left, 2)).relu()
        smooth = fn.interpolate(low, scale_factor=2, mode="bilinear")
        return self.end(torch.cat([left, self.up(low), smooth], 1))


class Shared(nn.Module):
    """One layer twice, several results in a tree, an argument that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any, y: Any = None, *, scale: float = 1.0, pair: Any = ()) -> Any:
        a = self.layer(self.layer(x)) * scale
        found = {"sum": a.sum(), "all": [a, None, 3], "x": x}
        return found if y is None else {**found, "pair": (a + y, pair[0] - pair[1])}


class Embedded(nn.Module):
    """Tokens and a mask of what is there, through a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)

    def forward(self, tokens: Any, there: Any) -> Any:
        return self.layer(self.table(tokens), src_key_padding_mask=~there)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))


def cnn() -> Any:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5), nn.Softmax(1))
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), Residual(), nn.Hardswish(), *head)


TOKENS = torch.tensor([[1, 4, 10, 0, 0]])
MODULES = {
    "mlp": (mlp, (rand(2, 8),)),
    "cnn": (cnn, (rand(1, 3, 11, 11),)),
    "u-net": (UNet, (rand(1, 3, 8, 8),)),
    "transformer": (Embedded, (TOKENS, TOKENS > 0)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_runs_natively(name: str) -> None:
    torch.manual_seed(0)
    make, args = MODULES[name]
    module = make().eval()
    with torch.no_grad():
        wanted = module(*args)
    native = compiled(module, args)
    assert_equal(native(*args), wanted)
    arrays = native(*(x.numpy() for x in args))
    assert isinstance(arrays, np.ndarray)
    assert np.array_equal(arrays, native(*args).numpy())


def test_results_keep_the_tree_and_arguments_their_names() -> None:
    module, x, y = Shared(), rand(3, 4), rand(4)
    keywords = {"pair": (x, y), "scale": 2.0}
    net = al.from_torch(module, (x, y), keywords)
    native = al.auto_schedule(net, n_trials=0, progress=False)
    with torch.no_grad():
        wanted = module(x, y, **keywords)
    assert_equal(native(x, y, **keywords), wanted)
    assert_equal(native(y=y, x=x, scale=2.0, pair=(x, y)), wanted)
    assert native.report.results
    with pytest.raises(al.ModelError, match=r"argument .* is 3\.0, the example had 2\.0"):
        native(x, y, scale=3.0, pair=(x, y))
    with pytest.raises(al.ModelError, match="structure"):
        native(x)
    with pytest.raises(al.ModelError, match=r"shape \(2, 4\), expected \(3, 4\)"):
        native(x[:2], y, **keywords)
    with pytest.raises(al.ModelError, match=r"dtype torch\.float64, expected torch\.float32"):
        native(x.double(), y, **keywords)


def test_a_network_from_torch_is_tuned_with_others() -> None:
    net = al.from_torch(mlp().eval(), rand(2, 8))
    builder = GraphBuilder("relu")
    graph = builder.finish([builder.emit("relu", [builder.input("x", (2, 3))])])
    one, other = al.auto_schedule([net, graph], n_trials=0, progress=False)
    assert isinstance(one(rand(2, 8)), torch.Tensor)
    assert isinstance(other, al.CompiledModule)


def test_half_precision_comes_back_as_such() -> None:
    module = nn.Linear(8, 4).eval().half()
    got = compiled(module, (rand(2, 8).half(),))(rand(2, 8).half())
    with torch.no_grad():
        wanted = module.float()(rand(2, 8).half().float())
    assert got.dtype == torch.float16
    assert torch.allclose(got.float(), wanted, atol=2e-3)


def test_weights_are_those_of_the_import() -> None:
    module, x = nn.Linear(3, 2).eval(), rand(2, 3)
    native = compiled(module, (x,))
    before = native(x)
    with torch.no_grad():
        module.weight.zero_()
    assert torch.equal(native(x), before)


class Doubled(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x) * 2


class Cumulative(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.qr(x)[1]


def test_an_operator_without_a_reader_is_named_with_its_module() -> None:
    with pytest.raises(
        al.ModelError, match=r"aten\.linalg_qr\.default \(in inner \(Cumulative\)\)"
    ):
        al.from_torch(Doubled(Cumulative()), rand(3, 3))


class Positive(nn.Module):
    def forward(self, x: Any) -> Any:
        return x[x > 0] * 2


def test_a_size_that_depends_on_data_is_refused() -> None:
    with pytest.raises(al.ModelError, match=r"Positive.*depends on data"):
        al.from_torch(Positive(), rand(3, 3))


def test_training_is_refused_with_advice() -> None:
    for module in (nn.Dropout(), nn.BatchNorm1d(3)):
        with pytest.raises(al.ModelError, match=r"eval\(\)"):
            al.from_torch(Doubled(module).train(), rand(2, 3))


def test_what_cannot_be_exported_is_one_line() -> None:
    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(al.ModelError, match=r"cannot export Branch: .*torch\.compile") as error:
        al.from_torch(Branch(), rand(3))
    assert "\n" not in str(error.value)
    with pytest.raises(al.UsageError, match=r"function is no torch\.nn\.Module"):
        al.from_torch(lambda x: x, rand(3))


def test_an_exported_program_is_taken() -> None:
    module, x = mlp().eval(), rand(2, 8)
    native = al.auto_schedule(
        al.from_torch(torch.export.export(module, (x,)), ()), n_trials=0, progress=False
    )
    with torch.no_grad():
        assert_equal(native(x), module(x))
