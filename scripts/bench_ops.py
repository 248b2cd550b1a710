"""The operator suite against PyTorch (batch 1: about half an hour with 64 trials a case).

Claim: the programs found beat PyTorch's vendor kernels over the suite, each case tuned with at most
200 trials and 60 s. Makes .venv-torch with torch==2.13.0 where it is missing, then does what
`ansorlite bench ops` does: writes results/ops_b<batch>.jsonl and the table beside it.
Usage: python scripts/bench_ops.py [--batch 1|16] [--trials N] [--timeout S] [--only C2D] ...
"""

import subprocess
import sys
import venv
from pathlib import Path

from ansorlite.cli import main

PEER = Path(__file__).parents[1] / ".venv-torch"
PACKAGES = ("torch==2.13.0", "numpy", "onnx")


def make_peer() -> None:
    """The peer's environment, once."""
    python = PEER / "bin" / "python"
    if (
        python.exists()
        and subprocess.run([python, "-c", "import torch, onnx"], check=False).returncode == 0
    ):
        return
    print(f"installing {', '.join(PACKAGES)} into {PEER.name}", file=sys.stderr)
    if not python.exists():
        venv.create(PEER, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)


if __name__ == "__main__":
    make_peer()
    sys.exit(main(["bench", "ops", *sys.argv[1:]]))
