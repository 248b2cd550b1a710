"""Settings: every variable is read and checked; an error names the variable."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from ansorlite.errors import UsageError
from ansorlite.settings import (
    VARIABLES,
    Settings,
    begins_with_shipped,
    knowledge_is_on,
    learns,
    read_settings,
    settings,
)


def test_nothing_set_gives_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert read_settings({}) == Settings(cache_dir=Path("/home/someone/.cache/ansorlite"))


def test_every_variable_reaches_its_field() -> None:
    env = {
        "ANSORLITE_DEBUG": "3",
        "ANSORLITE_DUMP": "/nowhere/dump",
        "ANSORLITE_VERIFY": "yes",
        "ANSORLITE_NUM_THREADS": " 8 ",
        "ANSORLITE_BUILD_WORKERS": "2",
        "ANSORLITE_TARGET": "x86-64-v3",
        "ANSORLITE_CPU_LACKS": "avx512f, fma",
        "ANSORLITE_KNOWLEDGE": "no",
        "ANSORLITE_MAX_BYTES": "1000000",
        "ANSORLITE_CACHE_DIR": "/nowhere/cache",
    }
    assert set(env) == {name for name, _ in VARIABLES}
    assert read_settings(env) == Settings(
        debug=3,
        dump=Path("/nowhere/dump"),
        verify=True,
        num_threads=8,
        build_workers=2,
        target="x86-64-v3",
        cpu_lacks=frozenset({"avx512f", "fma"}),
        knowledge=False,
        max_bytes=1000000,
        cache_dir=Path("/nowhere/cache"),
    )


def test_what_a_search_begins_with() -> None:
    """Nothing, the shipped model alone, what earlier runs found, or both."""
    cases = (
        ("0", 0, 0),
        ("shipped", 0, 1),
        ("Shipped", 0, 1),
        ("", 1, 0),
        ("1", 1, 0),
        ("model", 1, 1),
    )
    for text, store, ships in cases:
        env = {"ANSORLITE_KNOWLEDGE": text}
        assert (knowledge_is_on(env), begins_with_shipped(env)) == (bool(store), bool(ships))
    with pytest.raises(UsageError, match="KNOWLEDGE"):
        begins_with_shipped({"ANSORLITE_KNOWLEDGE": "shiped"})
    assert learns({"ANSORLITE_KNOWLEDGE": "model"}) and not learns({})


def test_one_field_a_variable_and_at_most_ten() -> None:
    names = [name.removeprefix("ANSORLITE_").lower() for name, _ in VARIABLES]
    assert names == [f.name for f in fields(Settings)]
    assert len(names) <= 10


def test_an_empty_value_counts_as_unset() -> None:
    env = {name: "" for name, _ in VARIABLES}
    assert read_settings(env) == read_settings({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEBUG", "6"),
        ("DEBUG", "-1"),
        ("DEBUG", "loud"),
        ("VERIFY", "2"),
        ("NUM_THREADS", "0"),
        ("NUM_THREADS", "1_000"),
        ("NUM_THREADS", "2.5"),
        ("NUM_THREADS", "²"),
        ("BUILD_WORKERS", "99999"),
        ("MAX_BYTES", "0"),
        ("MAX_BYTES", "1e9"),
        ("BUILD_WORKERS", "9" * 30),
        ("DUMP", __file__),
        ("CACHE_DIR", __file__),
    ],
)
def test_nonsense_is_refused_by_name_and_value(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"ANSORLITE_{name}={value!r}")):
        read_settings({f"ANSORLITE_{name}": value})


def test_a_typo_is_a_warning_with_the_name_that_was_meant() -> None:
    with pytest.warns(UserWarning, match="did you mean ANSORLITE_DEBUG"):
        read_settings({"ANSORLITE_DEBGU": "1"})


def test_cache_dir_follows_xdg_only_where_it_is_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert read_settings({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/ansorlite")
    relative = read_settings({"XDG_CACHE_HOME": "x"}).cache_dir
    assert relative == Path("/home/someone/.cache/ansorlite")


def nobody(uid: int) -> None:
    raise KeyError(uid)


def test_without_a_home_directory_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user whom passwd does not know, HOME unset."""
    import pwd

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert read_settings({}).cache_dir is None
    assert read_settings({"XDG_CACHE_HOME": "relative"}).cache_dir is None
    assert read_settings({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/ansorlite")
    assert read_settings({"ANSORLITE_CACHE_DIR": "/c"}).cache_dir == Path("/c")
    with pytest.raises(UsageError, match="no home directory is known"):
        read_settings({"ANSORLITE_DUMP": "~/dump"})


def test_read_once_until_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    settings.cache_clear()
    monkeypatch.setenv("ANSORLITE_DEBUG", "1")
    assert settings().debug == 1
    monkeypatch.setenv("ANSORLITE_DEBUG", "2")
    assert settings().debug == 1
    settings.cache_clear()
    assert settings().debug == 2
    monkeypatch.undo()
    settings.cache_clear()
