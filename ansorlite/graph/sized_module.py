"""A network compiled for several sizes: one module, which runs the size that its arrays have.

In: a `CompiledModule` for each size, made with one `ConstantPool`, so weights are held once. Out:
`SizedModule`, which is called, saved and copied as a `CompiledModule` is. Shapes of no size are a
SizesError, unless the module was made with a function that compiles them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ansorlite.calls import Array, in_order, new_lock
from ansorlite.errors import ModelError
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.profile import Profile
from ansorlite.graph.profile_runs import REPEATS
from ansorlite.graph.saving import save_modules
from ansorlite.names import shown
from ansorlite.sizes import Shape, shapes_of, unlisted
from ansorlite.target import Target

CompileNew = Callable[[Mapping[str, Shape]], CompiledModule]


class SizedModule:
    """Callable network; the shapes of a call's arrays choose the size.

    `modules` are those of single sizes, `labels` what tells them apart. With `compile_new` other
    shapes are compiled when they first come, and kept. A copy, or an unpickled module, has all
    sizes and no `compile_new`.

    Example: `net = al.load_onnx(file, dims={"w": [320, 640]}); module = al.auto_schedule(net)`.
    """

    def __init__(
        self,
        modules: Sequence[CompiledModule],
        labels: Sequence[str],
        compile_new: CompileNew | None = None,
    ) -> None:
        self.modules, self.labels = list(modules), list(labels)
        self._compile_new = compile_new
        self._lock = new_lock(self)
        self._by_shapes = {_shapes(m): m for m in self.modules}

    def __str__(self) -> str:
        sizes = "; ".join(
            f"{label}: {m}" for label, m in zip(self.labels, self.modules, strict=True)
        )
        return shown(f"{type(self).__name__} of {len(self.modules)} sizes: {sizes}")

    def __repr__(self) -> str:
        return f"<{self}>"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "kinds": [type(m) for m in self.modules],
            "states": [{**m.__getstate__()} for m in self.modules],
            "labels": self.labels,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        copies: dict[int, Array] = {}
        modules = []
        for kind, own in zip(state["kinds"], state["states"], strict=True):
            module = kind.__new__(kind)
            module.restore(own, copies)
            modules.append(module)
        SizedModule.__init__(self, modules, state["labels"])

    @property
    def graph_inputs(self) -> tuple[str, ...]:
        return self.modules[0].graph_inputs

    @property
    def graph_outputs(self) -> tuple[str, ...]:
        return self.modules[0].graph_outputs

    def __call__(
        self, /, *args: npt.ArrayLike, **named: npt.ArrayLike
    ) -> Array | tuple[Array, ...]:
        """Run on arrays in input order, by name or in one dict; the shapes choose the size.

        Raises ModelError as a module of one size does, and SizesError, which lists the sizes that
        there are, for other shapes.
        """
        given = self._in_order(args, named)
        return self._of(given)(*given)

    def size_of(self, /, *args: npt.ArrayLike, **named: npt.ArrayLike) -> CompiledModule:
        """The module that a call with these arguments runs."""
        return self._of(self._in_order(args, named))

    def profile(
        self, /, *args: npt.ArrayLike, repeats: int = REPEATS, alone: bool = True
    ) -> Profile:
        """As `CompiledModule.profile`, of the size of these inputs."""
        given = self._in_order(args, {})
        return self._of(given).profile(*given, repeats=repeats, alone=alone)

    def _in_order(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        return in_order(self.graph_inputs, args, named)

    def _of(self, given: Sequence[Any]) -> CompiledModule:
        shapes = shapes_of(self.graph_inputs, given)
        found = self._by_shapes.get(shapes)
        return self._new(shapes) if found is None else found

    def _new(self, shapes: tuple[Shape, ...]) -> CompiledModule:
        """The module of shapes that are not listed: a SizesError, or compiled and kept."""
        names = self.graph_inputs
        if self._compile_new is None:
            raise unlisted(names, shapes, list(self._by_shapes))
        with self._lock:
            if shapes not in self._by_shapes:
                made = self._compile_new(dict(zip(names, shapes, strict=True)))
                self.modules.append(made)
                self.labels.append(_label(names, shapes, _shapes(self.modules[0])))
                self._by_shapes[shapes] = made
        return self._by_shapes[shapes]

    def save(
        self,
        folder: str | Path,
        target: Target | str | None = None,
        targets: Sequence[Target | str] | None = None,
    ) -> Path:
        """Write all sizes into one new folder, with the weights once; see `graph.deploy`.

        `ansorlite.load_module` reads the folder; in C, `network_size_of` finds the size of given
        shapes and `network_run_size` runs it. Targets are those of `CompiledModule.save`.
        """
        return save_modules(self.modules, folder, target, targets)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all constants; those that several sizes read count once."""
        held = {id(x): x for m in self.modules for x in m.constants}
        return sum(x.nbytes for x in held.values())


def _shapes(module: CompiledModule) -> tuple[Shape, ...]:
    types = module.partition.graph.types
    found = tuple(types[v].shape for v in module.graph_inputs)
    if not found:
        raise ModelError("a network without inputs has one size")
    return found


def _label(names: Sequence[str], shapes: Sequence[Shape], first: Sequence[Shape]) -> str:
    """What tells new shapes from the first size."""
    differs = [
        f"{name}={'x'.join(map(str, shape))}"
        for name, shape, other in zip(names, shapes, first, strict=True)
        if shape != other
    ]
    return shown(", ".join(differs), 80)
