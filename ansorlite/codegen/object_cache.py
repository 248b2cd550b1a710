"""Built objects on disk: what was compiled once on a machine is not compiled again.

In: a program and a target, or any key and bytes. Out: the same `KernelImage` as `build_program`
gives, or the bytes that were kept. The folder is `objects` in the cache's folder (see `settings`).
A key names all that determines an entry: structure, target, versions, this package's own code.
Entries carry their SHA-256; a damaged one is removed and made again. Files are replaced as a whole,
so several processes share the folder; beyond `MOST_BYTES` the least recently used ones go. Entries
are run as code: only files of this user, in a folder that nobody else can write to, are read.
"""

import contextlib
import json
import os
import stat
import threading
from dataclasses import astuple, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import llvmlite

import ansorlite
from ansorlite.codegen.build import SYMBOL, build_program, image_of
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.spans import Access, Spans
from ansorlite.ir.digest import digest
from ansorlite.ir.program import Program
from ansorlite.settings import cache_dir, settings
from ansorlite.target import Target

MOST_BYTES = 256 << 20  # of all entries together; 0: nothing is read or written
KEPT_SHARE = 0.75  # of that, what remains when entries have to go
MAX_ENTRY_BYTES = 64 << 20
HEAD = b"ansorlite object 1\n"
FOLDER = "objects"


def compiled(program: Program, target: Target, symbol: str = SYMBOL) -> KernelImage:
    """`build_program`, or what an earlier call of any process gave for the same program."""
    if not is_on():
        return build_program(program, target, symbol)
    key = key_of("object", program, target, symbol)
    entry = load(key)
    if entry is not None:
        head, _, code = entry.partition(b"\n")
        unread, touched = json.loads(head)
        image = image_of(program, code, target, symbol, frozenset(unread))
        return replace(image, spans=tuple(map(_spans_of, touched)))
    image = build_program(program, target, symbol)
    told = [sorted(image.unread), [s and astuple(s) for s in image.spans]]
    save(key, json.dumps(told).encode() + b"\n" + image.object_bytes)
    return image


def _spans_of(told: Any) -> Spans | None:
    if told is None:
        return None
    units, grains, least, accesses = told
    return Spans(units, grains, least, tuple(Access(*a) for a in accesses))


def is_on() -> bool:
    """Is anything kept? Not where stages are verified or shown: then all of them have to run."""
    s = settings()
    return MOST_BYTES > 0 and not (s.verify or s.debug or s.dump) and folder() is not None


def folder() -> Path | None:
    """The folder of the entries; None where nothing is cached."""
    found = cache_dir(os.environ)
    return None if found is None else found / FOLDER


def key_of(kind: str, *things: object) -> str:
    """The key of an entry of that kind that follows from `things` and from this package's code."""
    return digest(kind, ansorlite.__version__, llvmlite.__version__, _own_code(), things)


@cache
def _own_code() -> str:
    """SHA-256 of this package's source and data: in a checkout they change without a version."""
    state, root = sha256(), Path(ansorlite.__file__).parent
    for path in sorted((*root.rglob("*.py"), *root.rglob("*.json"))):
        state.update(str(path.relative_to(root)).encode())
        with contextlib.suppress(OSError):
            state.update(path.read_bytes())
    return state.hexdigest()


# ---- files --------------------------------------------------------------------------------------


def load(key: str) -> bytes | None:
    """The bytes saved under a key; None where there are none, or only damaged ones."""
    root = folder()
    if root is None:
        return None
    path = root / key
    try:
        if not (_is_own(root) and _is_own(path)) or path.stat().st_size > MAX_ENTRY_BYTES:
            return None
        data = path.read_bytes()
        found = _checked(data)
        if found is None:
            path.unlink()
        else:
            os.utime(path)  # the most recently used one
        return found
    except OSError:
        return None


def save(key: str, data: bytes) -> None:
    """Keep bytes under a key, as long as there is room; nothing happens where that fails."""
    root = folder()
    if root is None or len(data) > min(MAX_ENTRY_BYTES, MOST_BYTES) // 2:
        return
    whole = HEAD + sha256(data).hexdigest().encode() + b"\n" + data
    with contextlib.suppress(OSError):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_own(root):
            _write(root / key, whole)
            _make_room(root, len(whole))


def _write(path: Path, data: bytes) -> None:
    """Write a file that replaces `path` as a whole, whoever else writes it at the same time."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def _checked(data: bytes) -> bytes | None:
    """The contents of a file, if they are what was written."""
    if not data.startswith(HEAD):
        return None
    said, _, content = data[len(HEAD) :].partition(b"\n")
    return content if sha256(content).hexdigest().encode() == said else None


def _is_own(path: Path) -> bool:
    """Can only this user have written that?"""
    found = path.stat(follow_symlinks=False)
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid == os.getuid() and not others and not stat.S_ISLNK(found.st_mode)


_written: dict[Path, int] = {}  # bytes in a folder: counted once, and what was written since


def _make_room(root: Path, new_bytes: int) -> None:
    """Remove the least recently used entries where all of them have become too many."""
    if root in _written and _written[root] + new_bytes <= MOST_BYTES:
        _written[root] += new_bytes
        return
    files = []
    for entry in os.scandir(root):
        with contextlib.suppress(OSError):  # another process removes entries, too
            found = entry.stat(follow_symlinks=False)
            files.append((found.st_mtime_ns, found.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    if total > MOST_BYTES:
        for _, size, path in sorted(files):
            if total <= KEPT_SHARE * MOST_BYTES:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
    _written[root] = total
