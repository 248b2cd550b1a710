"""The cache of machine figures: its folder, damaged files, folders without write access."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from ansorlite.measure import machine_cache
from ansorlite.measure.machine_cache import cache_file, read_cache, write_cache

ENTRIES = {"here": {"speed": 1.0}}


@pytest.fixture(autouse=True)
def once() -> None:
    machine_cache._warn_unwritable.cache_clear()


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSORLITE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_file("peak") == Path("/x/ansorlite/peak.json")
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", "/c")
    assert cache_file("peak") == Path("/c/peak.json")


def test_cached_figures_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "peak.json"
    assert read_cache(path) == {}
    write_cache(path, ENTRIES)
    assert read_cache(path) == ENTRIES
    assert os.listdir(path.parent) == ["peak.json"]


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b'{"here": 3}', b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000]
)
def test_damage_counts_as_not_measured(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "peak.json"
    path.write_bytes(data)
    assert read_cache(path) == {}
    write_cache(path, ENTRIES)
    assert read_cache(path) == ENTRIES


def test_a_folder_or_a_pipe_in_place_of_the_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_cache(tmp_path / "pipe") == read_cache(tmp_path) == {}


@pytest.mark.parametrize("place", ["file/peak.json", None])
def test_a_folder_without_write_access_warns_once(tmp_path: Path, place: str | None) -> None:
    (tmp_path / "file").write_text("no folder")
    path = None if place is None else tmp_path / place
    with pytest.warns(UserWarning, match="set ANSORLITE_CACHE_DIR to a directory"):
        write_cache(path, ENTRIES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_cache(path, ENTRIES)
    assert read_cache(path) == {}


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getppid(), 10**30):
        (tmp_path / f"peak.json.{pid}").write_text("half")
    (tmp_path / "peak.json.txt").write_text("a user's")
    write_cache(tmp_path / "peak.json", ENTRIES)
    left = {f"peak.json.{os.getppid()}", "peak.json.txt", "peak.json"}
    assert set(os.listdir(tmp_path)) == left
    assert json.loads((tmp_path / "peak.json").read_text()) == ENTRIES
