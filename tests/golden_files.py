"""Comparison of a text with a golden file, or writing the file."""

from pathlib import Path

import pytest


def compare_golden(path: Path, text: str, update: bool) -> None:
    """Fail unless the file holds `text` (apart from the final newline); with `update`, write it."""
    text = text.rstrip("\n") + "\n"
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    elif not path.exists():
        pytest.fail(f"{path} does not exist: read the text, then run with --update-golden\n{text}")
    else:
        assert text == path.read_text(encoding="utf-8"), f"{path.name}: see --update-golden"
