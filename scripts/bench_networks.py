"""The paper's five networks against onnxruntime and PyTorch (about an hour and ten minutes).

Claim: tuned for ten minutes each, the compiled networks are faster than onnxruntime and PyTorch in
its best mode. Makes .venv-torch (and .venv-openvino) where a named peer is missing. Writes
results/networks.jsonl and the table beside it.
Usage: python scripts/bench_networks.py [--batch 1|16] [--timeout S] [--only resnet50 ...]
       [--peers onnxruntime torch openvino openvino-default torch-inductor ...] [--output FILE]
"""

import argparse
import sys
from functools import partial

from bench import networks
from bench.experiment import RESULTS, exit_status
from bench.options import checked, peer_options
from bench.peers import NETWORKS
from bench.suite import networks as chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    peer_options(parser, NETWORKS, ("onnxruntime", "torch"), None, 600.0)
    args = parser.parse_args()
    wanted = chosen(args.only)
    path, options = checked(args, RESULTS / "networks.jsonl")
    experiment = networks.experiment(path, options.peers)
    failed = experiment.run(wanted, partial(networks.bench_network, options=options), again=True)
    experiment.finish()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
