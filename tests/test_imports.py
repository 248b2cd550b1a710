"""Heavy packages are loaded when a function first needs them, not by `import ansorlite`.

Each case runs in a new interpreter. No test measures a time: an import without these packages takes
a few milliseconds.
"""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "lightgbm", "scipy", "llvmlite", "networkx", "tqdm", "onnx", "pandas", "sklearn")


def loaded_by(statement: str) -> set[str]:
    """The packages of `HEAVY` that are loaded after the statement."""
    code = f"import sys\n{statement}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["ansorlite", "ansorlite.cli", "ansorlite.errors"])
def test_an_import_loads_no_heavy_package(module: str) -> None:
    assert loaded_by(f"import {module}") == set()


def test_a_saved_network_needs_numpy_alone() -> None:
    assert loaded_by("import ansorlite; ansorlite.load_module") == {"numpy"}


@pytest.mark.parametrize("name", ["SearchTask", "Kernel", "tune", "auto_schedule", "load_onnx"])
def test_public_names_load_neither_lightgbm_nor_onnx(name: str) -> None:
    loaded = loaded_by(f"import ansorlite; ansorlite.{name}")
    assert "numpy" in loaded
    assert not loaded & {"lightgbm", "scipy", "networkx", "onnx", "pandas", "sklearn", "tqdm"}
