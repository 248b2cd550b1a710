"""Settings that all tests share, and the golden files.

hypothesis runs without deadlines (two busy cores) and, where CI is set, with the same examples
every time. `golden(text, name)` compares a text with tests/golden/<name>.txt, or writes it there
with `pytest --update-golden`.
"""

import os
import signal
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

# Tests send SIGHUP to processes that they start, which inherit that nohup has it ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


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
