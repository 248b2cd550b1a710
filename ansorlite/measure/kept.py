"""Figures of a machine that outlive a process: one JSON file a kind, an entry a target.

They lie in `$XDG_CACHE_HOME/ansorlite` (else ~/.cache/ansorlite) and only save time: a file that is
damaged, absent or cannot be written is no error. In and out: plain JSON objects by fingerprint.
"""

import json
import os
from pathlib import Path
from typing import Any


def kept_file(name: str) -> Path:
    """Where the figures called `name` are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "ansorlite" / f"{name}.json"


def read_kept(path: Path) -> dict[str, dict[str, Any]]:
    """The file's entries; whatever is damaged or absent counts as not measured yet."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {key: e for key, e in entries.items() if isinstance(e, dict)}


def keep(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Replace the file in one step, so that readers never see half of it."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
        scratch.replace(path)
    except OSError:
        return
