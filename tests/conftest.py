"""Settings that all tests share, and the comparison with golden files.

hypothesis runs without deadlines, because cores may be busy; if the variable CI is set, its
examples are the same in every run. Kernels are timed briefly (`quick_measuring`).
`golden(text, name)` compares a text with tests/golden/<name>.txt; with `pytest --update-golden` it
writes the file instead.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_files import compare_golden
from hypothesis import HealthCheck, settings
from quick_script import quick_manner

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile(
    "ansorlite",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ansorlite")

# Tests send signals to processes that they start. Ignored signals are inherited: nohup has SIGHUP
# ignored, and a shell has SIGINT ignored in what it starts in the background.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def quick_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tunings of a test: one build process, kernels timed briefly, a last race of 0.1 s.

    tests/measure has this fixture do nothing: the timing itself is tested there.
    """
    monkeypatch.setattr("ansorlite.measure.runner.CHILD_ENTRY", "quick_runner:serve")
    monkeypatch.setattr("ansorlite.search.tune.ALONE", quick_manner())
    monkeypatch.setenv("ANSORLITE_BUILD_WORKERS", "1")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No object is taken from a run before; tests of that set a limit and a folder of their own."""
    monkeypatch.setattr("ansorlite.codegen.object_cache.MOST_BYTES", 0)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the user's earlier runs are not seen; tests of those have a folder of their own.

    Fixtures of a module are set up before: what they tune finds the variable, too.
    """
    monkeypatch.setenv("ANSORLITE_KNOWLEDGE", "0")


os.environ["ANSORLITE_KNOWLEDGE"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/*.txt instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """check(text, name): asserts that tests/golden/<name>.txt holds `text`."""
    update = bool(request.config.getoption("--update-golden"))

    def check(text: str, name: str) -> None:
        compare_golden(GOLDEN / f"{name}.txt", text, update)

    return check
