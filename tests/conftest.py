"""Settings that all tests share, and the golden files.

hypothesis runs without deadlines (two busy cores) and, where CI is set, with the same examples
every time. Kernels are timed briefly (`quick_measuring`). `golden(text, name)` compares a text with
tests/golden/<name>.txt, or writes it there with `pytest --update-golden`.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile(
    "ansorlite",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ansorlite")


@pytest.fixture(autouse=True)
def quick_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tunings of a test: one build process, kernels timed briefly, a last race of 0.1 s.

    tests/measure has this fixture do nothing: the timing itself is tested there.
    """
    monkeypatch.setattr("ansorlite.measure.runner.SESSION_ENTRY", "quick_runner:serve")
    monkeypatch.setattr("ansorlite.search.tune.SETTLE_ALONE", (4, 0.1))
    monkeypatch.setenv("ANSORLITE_BUILD_WORKERS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/*.txt instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """check(text, name): `text` is what tests/golden/<name>.txt says."""
    update = bool(request.config.getoption("--update-golden"))

    def check(text: str, name: str) -> None:
        compare_golden(GOLDEN / f"{name}.txt", text, update)

    return check


def compare_golden(path: Path, text: str, update: bool) -> None:
    """Fail unless the file holds `text` (the final newline aside); with `update`, write it."""
    text = text.rstrip("\n") + "\n"
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    elif not path.exists():
        pytest.fail(f"{path} does not exist: read the text, then run with --update-golden\n{text}")
    else:
        assert text == path.read_text(encoding="utf-8"), f"{path.name}: see --update-golden"
