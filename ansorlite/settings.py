"""The environment variables of ansorlite, declared in one place.

In: `os.environ`, read once, at the first call of `settings()`. Out: a frozen `Settings`. A value
that is not allowed raises a `UsageError` with the variable, the value and the allowed values. An
unknown variable with the prefix ANSORLITE_ gives a warning, because it is probably a typing error.
No other module reads variables with this prefix. Example: `ANSORLITE_DEBUG=1 ansorlite tune
resnet18` prints a line per round.
"""

import difflib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from os import environ
from pathlib import Path

from ansorlite.errors import UsageError

PREFIX = "ANSORLITE_"
VARIABLES: tuple[tuple[str, str], ...] = (
    (
        "ANSORLITE_CACHE_DIR",
        "off, or the cache's directory; default: $XDG_CACHE_HOME/ansorlite",
    ),
    ("ANSORLITE_DEBUG", "0..5: 1 rounds, 2 candidates, 3 steps, 4 loop IR, 5 LLVM and assembly"),
    ("ANSORLITE_DUMP", "directory that receives numbered files, one per stage"),
    ("ANSORLITE_VERIFY", "0 or 1: verify every level between the stages"),
    ("ANSORLITE_NUM_THREADS", "threads of a kernel; default: the usable processors"),
    ("ANSORLITE_BUILD_WORKERS", "processes that compile; default: the usable processors"),
    ("ANSORLITE_TARGET", "which set of kernels of a saved network runs; default: the best one"),
    ("ANSORLITE_CPU_LACKS", "features that saved networks take this CPU to lack, such as avx512f"),
    (
        "ANSORLITE_KNOWLEDGE",
        "0, 1 (what runs find is used, and kept), model (cost models, too), shipped",
    ),
    ("ANSORLITE_MAX_BYTES", "limit of a network's values; default: half of the usable memory"),
)
SHIPPED, MODEL = "shipped", "model"  # values of ANSORLITE_KNOWLEDGE
OFF = "off"  # value of ANSORLITE_CACHE_DIR: nothing is cached
MAX_THREADS = 4096
MAX_BYTES = 1 << 60
MAX_DIGITS = 30  # of a number; int() refuses texts of thousands of digits


@dataclass(frozen=True)
class Settings:
    """The values of `VARIABLES`; None where the module that uses the value finds the default.

    `cache_dir` is None where no home directory is known, or where ANSORLITE_CACHE_DIR is "off":
    then nothing is cached. Example: `settings().verify`.
    """

    cache_dir: Path | None
    debug: int = 0
    dump: Path | None = None
    verify: bool = False
    num_threads: int | None = None
    build_workers: int | None = None
    target: str = ""
    cpu_lacks: frozenset[str] = frozenset()
    knowledge: bool = True
    max_bytes: int | None = None


@cache
def settings() -> Settings:
    """The settings of this process; after `settings.cache_clear()` they are read again.

    Raises UsageError if a variable has a value that is not allowed.
    """
    return read_settings(environ)


def read_settings(env: Mapping[str, str]) -> Settings:
    """The settings in `env`; an empty value counts as unset. Raises UsageError as `settings`."""
    known = [name for name, _ in VARIABLES]
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            warnings.warn(f"{name} is set, but ansorlite does not read it: {hint}", stacklevel=3)
    dump = _text(env, "DUMP")
    return Settings(
        cache_dir=cache_dir(env),
        debug=_integer(env, "DEBUG", 0, 5) or 0,
        dump=_directory("DUMP", dump) if dump else None,
        verify=_boolean(env, "VERIFY"),
        num_threads=_integer(env, "NUM_THREADS", 1, MAX_THREADS),
        build_workers=_integer(env, "BUILD_WORKERS", 1, MAX_THREADS),
        target=forced_target(env),
        cpu_lacks=lacking(env),
        knowledge=knowledge_is_on(env),
        max_bytes=_integer(env, "MAX_BYTES", 1, MAX_BYTES),
    )


def _text(env: Mapping[str, str], name: str) -> str:
    return env.get(PREFIX + name, "").strip()


def _integer(env: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    text = _text(env, name)
    if not text:
        return None
    # isdecimal rejects "1_000", "+3" and "1e3", which int() and a shell read differently
    digits = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    if not (digits and low <= int(text) <= high):
        raise UsageError(
            f"{PREFIX}{name}={text[:40]!r} is not a whole number from {low} to {high}: correct it"
        )
    return int(text)


def _boolean(env: Mapping[str, str], name: str) -> bool:
    match _text(env, name).lower():
        case "" | "0" | "false" | "no" | "off":
            return False
        case "1" | "true" | "yes" | "on":
            return True
        case other:
            raise UsageError(
                f"{PREFIX}{name}={other!r} is neither true nor false: set it to 0 or 1"
            )


def _directory(name: str, text: str) -> Path:
    path = _expanded(text)
    if path is None:
        raise UsageError(f"{PREFIX}{name}={text!r}: no home directory is known, name a full path")
    # lexists: a folder without search permission exists as well
    if os.path.lexists(path) and not path.is_dir():
        raise UsageError(f"{PREFIX}{name}={text!r} is a file: name a directory")
    return path


def cache_dir(env: Mapping[str, str]) -> Path | None:
    """The folder for cached figures and objects of the machine; None where there is to be none.

    That is where the variable is "off", or where no home directory is known.
    """
    if text := _text(env, "CACHE_DIR"):
        if cache_is_off(env):
            return None
        return _directory("CACHE_DIR", text)
    # XDG base directory specification: ignore a relative XDG_CACHE_HOME
    base = Path(env.get("XDG_CACHE_HOME") or "~/.cache")
    found = base if base.is_absolute() else _expanded("~/.cache")
    return None if found is None else found / "ansorlite"


def forced_target(env: Mapping[str, str]) -> str:
    """The set of kernels that saved networks run; empty where the best one is to run."""
    return _text(env, "TARGET")


def lacking(env: Mapping[str, str]) -> frozenset[str]:
    """Features that this CPU counts as without, in the words of /proc/cpuinfo."""
    return frozenset(_text(env, "CPU_LACKS").replace(",", " ").split())


def knowledge_is_on(env: Mapping[str, str]) -> bool:
    """Is what earlier runs found used, and what this run finds kept for later ones?"""
    text = _text(env, "KNOWLEDGE").lower()
    return text != SHIPPED and (text in ("", MODEL) or _boolean(env, "KNOWLEDGE"))


def begins_with_shipped(env: Mapping[str, str]) -> bool:
    """Does a search begin with the cost model that comes with the package?"""
    return (not knowledge_is_on(env) and _text(env, "KNOWLEDGE").lower() == SHIPPED) or learns(env)


def learns(env: Mapping[str, str]) -> bool:
    """Do runs keep what a cost model of this machine is trained on, and train it?"""
    return _text(env, "KNOWLEDGE").lower() == MODEL


def cache_is_off(env: Mapping[str, str]) -> bool:
    """Is nothing of the machine to be cached?"""
    return _text(env, "CACHE_DIR").lower() == OFF


def _expanded(text: str) -> Path | None:
    """The path with "~" expanded; None where that fails, because no home directory is known."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        return None
    return path if path.is_absolute() or not text.startswith("~") else None
