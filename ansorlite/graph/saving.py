"""Targets of a saved network: names -> a set of kernels for each -> `deploy.save`.

In: the modules of a network's sizes, one or several targets. Out: the folder. Programs for other
targets are those of `search.retarget`; weights that targets read in one layout are held once.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ansorlite.errors import UsageError
from ansorlite.graph import deploy
from ansorlite.graph.linked import KernelSet, Linked
from ansorlite.graph.pool import ConstantPool
from ansorlite.names import shown
from ansorlite.presets import TYPICAL_CORES
from ansorlite.target import Target

NATIVE = "native"  # a module's own target


class Saveable(Protocol):
    """A `CompiledModule`."""

    target: Target

    @property
    def found(self) -> Mapping[str, int]: ...

    def for_target(self, target: Target, pool: ConstantPool) -> Any: ...

    def linked(self) -> Linked: ...


def named_target(name: str, own: Target) -> Target:
    """A target by name or "native"; without cores those of `own`, unless the name has a number."""
    if name == NATIVE:
        return own
    given = ":" in name or name in TYPICAL_CORES
    return Target.named(name if given else f"{name}:{own.cores}")


def save_modules(
    modules: Sequence[Saveable],
    folder: str | Path,
    target: Target | str | None,
    targets: Sequence[Target | str] | None,
) -> Path:
    """Write the sizes of a network for one or several targets; see `CompiledModule.save`."""
    if targets is not None and target is not None:
        raise UsageError("target and targets are both given: name all of them in targets")
    if isinstance(targets, str | Target):
        raise UsageError(f"targets is {shown(str(targets), 40)!r}: give a list, or target=")
    own = modules[0].target
    wanted: list[Target | str | None] = [target] if targets is None else list(targets)
    machines = [named_target(t, own) if isinstance(t, str) else t or own for t in wanted]
    names = [t if isinstance(t, str) else m.cpu for t, m in zip(wanted, machines, strict=True)]
    deploy.check_targets(names, machines)
    sets = []
    for name, machine in zip(names, machines, strict=True):
        pool = ConstantPool()
        made = [m.for_target(machine, pool) for m in modules]
        found: dict[str, int] = {}
        for m in made:
            for how, n in m.found.items():
                found[how] = found.get(how, 0) + n
        sets.append(KernelSet(name, made[0].target, tuple(m.linked() for m in made), found))
    return deploy.save(sets, folder)
