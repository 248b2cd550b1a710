"""Model files of networks by name, with static shapes: what every contender of a race reads.

In: a name and a folder that is kept. Out: an ONNX file there, made or fetched where it is missing:
of `workloads.networks`, of `bench.torch_networks` (exported by the interpreter of .venv-torch), or
of a public package.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansorlite.errors import MissingExtra, UsageError
from ansorlite.workloads.networks import NETWORKS as BUILT
from ansorlite.workloads.networks import network
from bench.contest import SCRIPTS
from bench.fetch import fetched
from bench.onnx_export import export_onnx
from bench.peers import install, interpreter

EXPORTED = ("efficientnet_b0", "deeplab_v3", "unet", "vit_b16", "whisper_tiny_encoder")
# (package, end of the file's name, extents of the input)
PACKED: Mapping[str, tuple[str, str, tuple[int, ...]]] = {
    "nudenet": ("nudenet==3.4.2", "320n.onnx", (1, 3, 320, 320))
}
NAMES = (*BUILT, *EXPORTED, *PACKED)


def model_file(name: str, folder: Path) -> Path:
    """The ONNX file of a network of NAMES; UsageError for another name, or what cannot be made."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{name}.made.onnx"
    if name in BUILT:
        made.write_bytes(export_onnx(network(name)).SerializeToString())
    elif name in EXPORTED:
        install(["torch"])
        command = [interpreter("torch"), "-m", "bench.torch_networks", name, str(made)]
        ran = subprocess.run(command, cwd=SCRIPTS, capture_output=True, text=True, check=False)
        if ran.returncode:
            last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
            raise UsageError(f"PyTorch cannot export {name}: {last}")
    elif name in PACKED:
        package, end, shape = PACKED[name]
        found = [p for file, p in fetched(package, folder / "packages") if file.endswith(end)]
        if not found:
            raise UsageError(f"{package} has no file {end}")
        made.write_bytes(_fixed(found[0], shape))
    else:
        raise UsageError(f"there is no network {name!r}: choose among {', '.join(NAMES)}")
    return made.replace(path)


def _fixed(path: Path, shape: tuple[int, ...]) -> bytes:
    """The file with these extents of its first input; shapes noted for other values are dropped."""
    try:
        import onnx
    except ImportError:
        raise MissingExtra("onnx", "onnx") from None
    proto: Any = onnx.load(path)
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    for d, extent in zip(dims, shape, strict=True):
        d.dim_value = extent
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    data: bytes = proto.SerializeToString()
    return data
