"""The tests of measuring use the runner as it is."""

import pytest


@pytest.fixture(autouse=True)
def quick_measuring() -> None:
    """In the place of the fixture of the same name for all other tests."""
