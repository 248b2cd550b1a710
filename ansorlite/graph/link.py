"""Part of the step after `compile`: the files of a saved network -> `libnetwork.so`.

In: the folder with objects and C source, the target. Out: the library, linked by `cc` for this
machine and by a cross compiler for another one: GCC's (`aarch64-linux-gnu-gcc`), clang, zig of the
system or of the wheel `ziglang`, whichever can. Without any the folder stays as it is: the manifest
has the command that links the library on the device.
"""

import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from ansorlite.errors import BuildError
from ansorlite.manifest import LIBRARY, link_command
from ansorlite.target import Target


def link(path: Path, kernels: int, target: Target) -> bool:
    """Link the library of so many kernels in the folder; False where no compiler is there.

    Raises BuildError where this machine's own compiler refuses. Of cross compilers one that fails
    is followed by the next; a warning tells where none of them links.
    """
    host = Target.detect()
    arguments = link_command(kernels)[1:]
    if (target.arch, target.system) == (host.arch, host.system):
        if (own := shutil.which("cc")) is None:
            return False
        _run(path, [own, *arguments], "cc")
        return True
    tried = []
    for name, compiler in cross_compilers(target):
        try:
            _run(path, [*compiler, *arguments], name)
            return True
        except BuildError as error:
            tried.append(str(error))
    why = "; ".join(tried) or "no cross compiler is installed"
    command = " ".join(link_command(kernels))
    warnings.warn(
        f"{LIBRARY} for {target.arch} was not linked ({why[:600]}): on the device, run in the "
        f"folder: {command}",
        UserWarning,
        stacklevel=2,
    )
    return False


def cross_compilers(target: Target) -> Iterator[tuple[str, list[str]]]:
    """(name, command without the files) of compilers for the target that are installed here."""
    linux = target.system == "linux"
    gcc = f"{target.arch}-linux-gnu-gcc"
    if linux and (found := shutil.which(gcc)):
        yield gcc, [found]
    if linux and (found := shutil.which("clang")):
        yield "clang", [found, f"--target={target.arch}-linux-gnu", "-fuse-ld=lld"]
    system = {"linux": "linux-gnu", "darwin": "macos"}.get(target.system)
    named = ["cc", "-target", f"{target.arch}-{system}"]
    if system and (found := shutil.which("zig")):
        yield "zig cc", [found, *named]
    if system and find_spec("ziglang"):
        yield "zig cc of ziglang", [sys.executable, "-m", "ziglang", *named]


def _run(path: Path, command: Sequence[str], name: str) -> None:
    """Run the compiler in the folder, where its temporary files lie, too."""
    before = {f.name for f in path.iterdir()}
    own = str(path)
    try:
        process = subprocess.Popen(
            command,
            cwd=path,
            env={
                **os.environ,
                "TMPDIR": own,
                "ZIG_LOCAL_CACHE_DIR": f"{own}/.zig",
                "ZIG_GLOBAL_CACHE_DIR": f"{own}/.zig",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise BuildError(
            f"{name} cannot be run: {error.strerror}: mend it or take it away"
        ) from None
    try:
        said, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # the compiler's own children, too
        process.communicate()
        raise
    made = (path / LIBRARY).is_file()
    for file in path.iterdir():
        if file.name not in (*before, *([LIBRARY] if made and not process.returncode else [])):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    if process.returncode or not made:
        text = " ".join(said.decode("utf-8", "replace").split())[:500] or "it said nothing"
        raise BuildError(f"{name} cannot link the network (status {process.returncode}): {text}")
