"""What an installation gets: the folders of the package, with their data, no benchmark."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_wheel_has_every_folder_and_no_benchmark() -> None:
    discovery = pytest.importorskip("setuptools.discovery")
    options = PROJECT["tool"]["setuptools"]["packages"]["find"]
    assert options.pop("namespaces") is False
    packages = set(discovery.PackageFinder.find(str(ROOT), **options))
    assert packages >= {"ansorlite", "ansorlite.graph", "ansorlite.search", "ansorlite.workloads"}
    assert {p.partition(".")[0] for p in packages} == {"ansorlite"}
    assert not [p for p in packages if "bench" in p.split(".")]


def test_folders_with_modules_are_packages() -> None:
    """A folder without `__init__.py` would be missing in an installation."""
    folders = {f.parent for f in (ROOT / "ansorlite").rglob("*.py")}
    assert not [f for f in folders if not (f / "__init__.py").exists()]


def test_a_checkout_has_the_workloads_without_an_installation() -> None:
    assert (ROOT / "ansorlite" / "workloads").resolve() == ROOT / "workloads"
    assert (ROOT / "ansorlite" / "workloads" / "ops.toml").exists()


def test_data_of_packages_are_installed() -> None:
    """What modules read at run time lies in the wheel; the shipped model takes 2 MB at most."""
    listed = PROJECT["tool"]["setuptools"]["package-data"]
    found = {
        package: [f for p in patterns for f in (ROOT / Path(*package.split("."))).glob(p)]
        for package, patterns in listed.items()
    }
    assert all(found.values())
    (model,) = found["ansorlite.cost"]
    assert model.name == "prior.npz" and model.stat().st_size <= 2_000_000
