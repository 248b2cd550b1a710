"""House rules that a test can check: layers, file lengths, docstrings, no loose ends.

`ALLOWED` is the table of layers. A new import between two folders of the package is a decision:
add it to the table in the same commit, or turn the import around.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 700
FOLDERS = ("ansorlite", "workloads", "scripts", "tests")

# Everybody may import these; they import nothing but each other.
BASE = {"calls", "errors", "files", "names", "settings", "sizes", "streams", "tables", "units"}
_SEARCHING = {
    "presets",
    "ir",
    "te",
    "target",
    "task",
    "schedule",
    "space",
    "cost",
    "codegen",
    "measure",
}
# What each folder or module of ansorlite may import, beside BASE and itself; lowest first. A module
# with a line of its own (as measure.limits) does not count as part of its folder.
ALLOWED: dict[str, set[str]] = {
    "names": set(),
    "calls": set(),
    "errors": set(),
    "files": set(),
    "settings": set(),
    "sizes": set(),
    "streams": set(),
    "units": set(),
    "tables": set(),
    "presets": set(),
    "host": {"presets"},
    "target": {"presets", "host"},
    "matrix_units": {"target"},
    "manifest": set(),
    "deployed_bench": set(),
    "deployed": {"manifest", "deployed_bench"},
    "record_fields": set(),
    "records": {"record_fields"},
    "ir": set(),
    "te": {"ir"},
    "task": {"te", "target"},
    "schedule": {"ir", "te"},
    "space": {"ir", "te", "target", "matrix_units", "schedule"},
    "codegen": {"ir", "host", "target", "matrix_units", "schedule"},
    "cost": {"ir", "te", "presets", "target", "schedule", "space", "codegen"},
    "measure": {"ir", "te", "target", "presets", "codegen"},
    "measure.calibrate": {"ir", "te", "target", "schedule", "codegen", "measure"},
    "measure.limits": {
        "ir",
        "te",
        "target",
        "task",
        "matrix_units",
        "codegen",
        "measure",
        "measure.calibrate",
    },
    "pool": {"ir", "te", "target", "codegen", "measure"},
    "search": {*_SEARCHING, "measure.calibrate", "measure.limits", "record_fields", "records"},
    "graph.types": set(),
    "graph.ops": {"ir", "te", "graph.types"},
    "graph": {
        *_SEARCHING,
        "measure.limits",
        "presets",
        "manifest",
        "deployed",
        "records",
        "search",
        "graph.types",
        "graph.ops",
    },
    "workloads": {"ir", "te", "target", "task", "graph", "graph.ops"},
    "shared_tasks": {*_SEARCHING, "search", "graph"},
    "recut": {*_SEARCHING, "records", "search", "graph", "shared_tasks"},
    "pipeline": {*_SEARCHING, "measure.limits", "search", "graph", "shared_tasks", "recut"},
    "pytorch": {"graph", "graph.types", "pipeline"},
    "baselines": {
        *_SEARCHING,
        "graph",
        "graph.types",
        "records",
        "search",
        "shared_tasks",
        "pipeline",
    },
    "report": {
        *_SEARCHING,
        "measure.calibrate",
        "measure.limits",
        "records",
        "search",
        "graph",
        "pipeline",
        "workloads",
    },  # reads results; only the command line imports it
}
TOP = {
    "pipeline",
    "cli",
    "__init__",
    "__main__",
}  # these may import everything
VERSION = ("ansorlite", "ansorlite.__version__")  # for the version, which anybody may ask for


def _files(*folders: str) -> list[Path]:
    found = [f for folder in folders for f in sorted((ROOT / folder).rglob("*"))]
    return [f for f in found if f.suffix in (".py", ".toml", ".sh") and f.is_file()]


def _python(*folders: str) -> list[Path]:
    return [f for f in _files(*folders) if f.suffix == ".py"]


def _layer(module: str) -> str:
    """The line of the table for a module: "ir" of "ansorlite.ir.expr"; unknown: its folder."""
    parts = module.split(".")[1:]
    prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((p for p in prefixes if p in ALLOWED), parts[0] if parts else "__init__")


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    parts = ("ansorlite", *parts) if parts[0] == "workloads" else parts
    return ".".join(p for p in parts if p != "__init__")


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, imported module) of all imports from the package, wherever they stand."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names = [a.name for a in aliases]
            case ast.ImportFrom(level=0, module="ansorlite", names=aliases):
                names = [f"ansorlite.{a.name}" for a in aliases]
            case ast.ImportFrom(level=0, module=str(module)):
                names = [module]
            case ast.ImportFrom(level=2 | 3):
                raise AssertionError(f"line {node.lineno}: relative imports stay in their folder")
            case _:
                continue
        yield from ((node.lineno, n) for n in names if n.split(".")[0] == "ansorlite")


def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def illegal_imports(file: Path) -> list[str]:
    """What the table does not allow, as `file:line imports layer`."""
    own = _layer(_module(file))
    if own in TOP:
        return []
    allowed = ALLOWED.get(own, set()) | BASE | {own}
    return [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for line, name in _imports(_parse(file))
        if _layer(name) not in allowed and name not in VERSION
    ]


def test_layers() -> None:
    found = [text for f in _python("ansorlite", "workloads") for text in illegal_imports(f)]
    assert not found, "\n".join(["not in the table of layers (tests/test_house.py):", *found])


def test_the_table_is_complete_and_has_no_cycles() -> None:
    present = {_layer(_module(f)) for f in _python("ansorlite", "workloads")}
    assert present - TOP <= set(ALLOWED), "give new folders a line in ALLOWED"
    lower = set(BASE)
    for layer, below in ALLOWED.items():
        assert below <= lower, f"{layer} is listed before {', '.join(sorted(below - lower))}"
        lower.add(layer)


def test_the_layer_check_sees_every_form_of_import() -> None:
    forms = [
        "from ansorlite.search import tune",
        "from ansorlite.search.tune import tune",
        "import ansorlite.search.tune",
        "from ansorlite import search",
        "def f():\n    from ansorlite.search.tune import tune",
    ]
    for form in forms:
        assert [n for _, n in _imports(ast.parse(form)) if _layer(n) == "search"], form
    assert not list(_imports(ast.parse("import numpy.ansorlite\nfrom os import path")))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_is_too_long(folder: str) -> None:
    lines = {f: len(f.read_text(encoding="utf-8").splitlines()) for f in _files(folder)}
    long = [f"{f.relative_to(ROOT)} has {n} lines" for f, n in lines.items() if n > MAX_LINES]
    assert not long, f"split what is longer than {MAX_LINES} lines: {', '.join(long)}"


def test_every_module_has_a_docstring() -> None:
    """A docstring in each module; empty __init__ files say nothing because they are nothing."""
    missing = [
        str(f.relative_to(ROOT))
        for f in _python(*FOLDERS)
        if f.read_text(encoding="utf-8").strip() and not ast.get_docstring(_parse(f))
    ]
    assert not missing


# Written so that this file does not contain them.
LOOSE_ENDS = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X\\b", "Not" + "Implemented"]))


def test_no_loose_ends() -> None:
    found = [
        f"{f.relative_to(ROOT)}:{k}: {line.strip()}"
        for f in _files("ansorlite", "workloads", "scripts")
        for k, line in enumerate(f.read_text(encoding="utf-8").splitlines(), 1)
        if LOOSE_ENDS.search(line)
    ]
    assert not found


def test_no_place_for_everything() -> None:
    """Helpers live beside their use: no module is called after being helpful."""
    names = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [str(f) for f in _python("ansorlite", "workloads") if f.stem in names]
    stars = [
        str(f.relative_to(ROOT))
        for f in _python("ansorlite", "workloads")
        for node in ast.walk(_parse(f))
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    ]
    assert not stars


def test_tests_have_names_of_their_own() -> None:
    """pytest imports test files by their basename."""
    names = [f.name for f in _python("tests") if f.name != "conftest.py"]
    assert len(set(names)) == len(names)
