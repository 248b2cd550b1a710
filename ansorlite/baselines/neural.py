"""Neural cost models over a program's loops or statements; needs torch (extra `torch`).

In: `TrainingGroup`s and float32[P, S, F]. Out: about best/this, as from `cost.model`. A program is
a sequence: of its loops, from the innermost out ("loops" features, S = 1, cut into tokens), or of
its statements. "gru" reads it with a gated recurrent unit, which on the chain of loops around one
statement is AutoTVM's TreeGRU; "attention" with self-attention, as One-Shot Tuner's predictor does.
Saved models are numpy arrays; loading one executes nothing.
"""

import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ansorlite.baselines.loop_context import MAX_LOOPS, WIDTH
from ansorlite.cost.losses import TrainingGroup, labels
from ansorlite.cost.model import expanded
from ansorlite.errors import MachineError, MissingExtra, UsageError

Features = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Kind = Literal["gru", "attention"]
HIDDEN, HEADS = 64, 4
MAX_TOKENS = 64  # that attention tells apart by their places
EPOCHS, BATCH, RATE = 60, 128, 2e-3
MIN_PROGRAMS = 16
MOST_BYTES = 1 << 26  # of a saved model
DAMAGE = (
    *(OSError, ValueError, LookupError, EOFError, MemoryError, ArithmeticError),
    *(RuntimeError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error),
)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "torch") from None
    return torch


class NeuralModel:
    """Trains anew on every update; the same seed and groups give the same model.

    `objective` "rank" fits which of two programs of a task is faster, "regression" best/this.
    Raises MissingExtra where torch is not installed.
    """

    def __init__(
        self,
        kind: Kind = "gru",
        seed: int = 0,
        objective: Literal["regression", "rank"] = "rank",
        epochs: int = EPOCHS,
    ) -> None:
        _torch()
        self.kind, self.objective = kind, objective
        self._seed, self._epochs = seed, epochs
        self._net: Any = None
        self._mean: Features = np.zeros(0, np.float32)
        self._scale: Features = np.ones(0, np.float32)

    @property
    def is_trained(self) -> bool:
        return self._net is not None

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Train on all programs that ran or failed; fewer than 16 teach nothing."""
        found = [(_padded(g.features), labels(g.latency_s)) for g in groups if len(g.features)]
        if sum(len(y) for _, y in found) < MIN_PROGRAMS:
            return
        torch = _torch()
        torch.manual_seed(self._seed)
        torch.set_num_threads(1)  # the cores belong to what is measured
        width = max(x.shape[1] for x, _ in found)
        x = np.concatenate([_widened(x, width) for x, _ in found])
        y = np.concatenate([y for _, y in found])
        task = np.concatenate([np.full(len(y), k) for k, (_, y) in enumerate(found)])
        there = np.abs(x).sum(axis=2) > 0
        tokens = x[there]
        self._mean = tokens.mean(axis=0)
        self._scale = tokens.std(axis=0) + 1e-3
        net = _network(torch, self.kind, x.shape[2])
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
        rng = np.random.default_rng(self._seed)
        data = self._tensors(torch, x)
        wanted, of = torch.from_numpy(y.astype(np.float32)), torch.from_numpy(task)
        for _ in range(self._epochs):
            order = rng.permutation(len(y))
            for first in range(0, len(order), BATCH):
                at = torch.from_numpy(order[first : first + BATCH])
                if len(at) < 2:
                    continue
                scores = net(*(part[at] for part in data))
                loss = self._loss(torch, scores, wanted[at], of[at])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self._net = net.eval()

    def _loss(self, torch: Any, scores: Any, wanted: Any, task: Any) -> Any:
        if self.objective == "regression":
            return ((torch.sigmoid(scores) - wanted) ** 2).mean()
        ahead = wanted[:, None] - wanted[None, :]
        pairs = (ahead > 0) & (task[:, None] == task[None, :])
        margin = scores[:, None] - scores[None, :]
        if not bool(pairs.any()):
            return scores.sum() * 0.0
        # Pairs count by how far they lie apart.
        weight = ahead[pairs]
        return (torch.nn.functional.softplus(-margin[pairs]) * weight).sum() / weight.sum()

    def predict(self, features: Features, task_key: str = "") -> Floats:
        """float64[P] in (0, 1); zeros while untrained."""
        if self._net is None or not len(features):
            return np.zeros(len(features))
        torch = _torch()
        with torch.no_grad():
            scores = self._net(*self._tensors(torch, _tokens(features)))
        return np.asarray(torch.sigmoid(scores).numpy(), np.float64)

    def spread(self, features: Features) -> Floats:
        """Never in doubt."""
        return np.zeros(len(features))

    def _tensors(self, torch: Any, x: Features) -> tuple[Any, Any]:
        """(scaled tokens, which of them there are)."""
        there = np.abs(x).sum(axis=2) > 0
        there[:, 0] = True
        scaled = np.where(there[..., None], (x - self._mean) / self._scale, 0.0)
        return torch.from_numpy(scaled.astype(np.float32)), torch.from_numpy(there)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights; UsageError where there are none."""
        if self._net is None:
            raise UsageError("the model has learned nothing yet: there is nothing to save")
        arrays = {f"net.{k}": v.numpy() for k, v in self._net.state_dict().items()}
        arrays["mean"], arrays["scale"] = self._mean, self._scale
        arrays["kind"] = np.asarray(self.kind)
        target = expanded(path)
        try:
            with target.open("wb") as out:
                np.savez(out, **arrays)
        except OSError as error:
            raise MachineError(f"cannot write the model {target}: {error.strerror}") from error

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replace the model by a saved one; UsageError if the file is none of this kind."""
        torch = _torch()
        try:
            _check_size(expanded(path))
            with np.load(expanded(path), allow_pickle=False) as found:
                arrays = {k: found[k] for k in found.files}
            kind = str(arrays.pop("kind"))
            self._mean, self._scale = arrays.pop("mean"), arrays.pop("scale")
            net = _network(torch, self.kind, len(self._mean))
            state = {k.removeprefix("net."): torch.from_numpy(v) for k, v in arrays.items()}
            if kind != self.kind:
                raise ValueError(f"it is of kind {kind}")
            net.load_state_dict(state)
        except (
            *DAMAGE,
            RuntimeError,
            TypeError,
            AttributeError,
            LookupError,
            ArithmeticError,
        ) as error:
            raise UsageError(f"{path} is no usable {self.kind} model: {error}") from error
        self._net = net.eval()


def _check_size(path: Path) -> None:
    """ValueError for an archive that would unpack to more than any model has."""
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > MOST_BYTES:
        raise ValueError(f"its arrays take {size} bytes, a model has {MOST_BYTES} at most")


def _tokens(features: Features) -> Features:
    """float32[P, T, W]: statements, or the loops of one statement's "loops" features."""
    n, statements, width = features.shape
    if statements == 1 and width == MAX_LOOPS * WIDTH:
        return features.reshape(n, MAX_LOOPS, WIDTH)
    return features


def _padded(features: Sequence[Features]) -> Features:
    """One array of programs with different numbers of statements, zeros behind."""
    most = max(len(f) for f in features)
    out = np.zeros((len(features), most, features[0].shape[1]), np.float32)
    for row, f in zip(out, features, strict=True):
        row[: len(f)] = f
    return _tokens(out)


def _widened(x: Features, tokens: int) -> Features:
    return np.pad(x, ((0, 0), (0, tokens - x.shape[1]), (0, 0)))


def _network(torch: Any, kind: Kind, width: int) -> Any:
    """A module (tokens [P, T, width], there [P, T]) -> scores [P]."""
    nn: Any = torch.nn
    module: Any = nn.Module

    class Recurrent(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(width, HIDDEN)
            self.gru = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
            self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

        def forward(self, x: Any, there: Any) -> Any:
            states, _ = self.gru(torch.relu(self.embed(x)))
            last = there.shape[1] - 1 - there.flip(1).int().argmax(dim=1)
            return self.head(states[torch.arange(len(x)), last]).squeeze(1)

    class Attending(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(width, HIDDEN)
            self.place = nn.Parameter(0.1 * torch.randn(MAX_TOKENS, HIDDEN))
            layer = nn.TransformerEncoderLayer(
                HIDDEN, HEADS, 2 * HIDDEN, dropout=0.0, batch_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

        def forward(self, x: Any, there: Any) -> Any:
            places = self.place[torch.arange(x.shape[1]).clamp(max=MAX_TOKENS - 1)]
            states = self.encoder(self.embed(x) + places, src_key_padding_mask=~there)
            mask = there.unsqueeze(2).to(states.dtype)
            return self.head((states * mask).sum(1) / mask.sum(1)).squeeze(1)

    return Recurrent() if kind == "gru" else Attending()
