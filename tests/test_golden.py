"""Comparison with golden files: equal text passes, other text or no file fails, updating writes."""

from pathlib import Path

import pytest
from golden_files import compare_golden


def test_golden(tmp_path: Path) -> None:
    path = tmp_path / "new" / "text.txt"
    with pytest.raises(pytest.fail.Exception, match="--update-golden"):
        compare_golden(path, "one\n", update=False)
    compare_golden(path, "one", update=True)
    assert path.read_text() == "one\n"
    compare_golden(path, "one\n\n", update=False)
    with pytest.raises(AssertionError, match=r"text\.txt"):
        compare_golden(path, "two", update=False)
    compare_golden(path, "two", update=True)
    compare_golden(path, "two", update=False)
