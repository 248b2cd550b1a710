"""The paper's five networks against onnxruntime and PyTorch (about an hour and ten minutes).

Claim: tuned for ten minutes each, the compiled networks are faster than onnxruntime and PyTorch in
its best mode. Makes .venv-torch where it is missing, then does what `ansorlite bench networks`
does: writes results/networks.jsonl and the table beside it.
Usage: python scripts/bench_networks.py [--batch 1|16] [--timeout S] [--only resnet50] ...
"""

import sys

from bench_ops import make_peer

from ansorlite.cli import main

if __name__ == "__main__":
    make_peer()
    sys.exit(main(["bench", "networks", *sys.argv[1:]]))
