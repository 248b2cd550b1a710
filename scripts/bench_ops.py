"""The operator suite against PyTorch (batch 1: about half an hour with 64 trials a case).

Claim: the programs found beat PyTorch's vendor kernels over the suite, each case tuned with at most
200 trials and 60 s. Makes .venv-torch with torch==2.13.0 where it is missing; other peers are named
with --peers. Writes results/ops_b<batch>.jsonl and the table beside it.
Usage: python scripts/bench_ops.py [--batch 1|16] [--trials N] [--timeout S] [--only C2D GMM:2 ...]
       [--peers torch numpy torch-eager torch-frozen torch-inductor] [--output FILE]
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from bench import ops
from bench.experiment import RESULTS, exit_status
from bench.options import checked, peer_options
from bench.peers import OPERATORS
from bench.suite import cases


def main(
    about: str | None = __doc__,
    peers: tuple[str, ...] = ("torch",),
    trials: int = 200,
    timeout: float = 60.0,
    only: tuple[str, ...] = (),
    output: Path | None = None,
) -> int:
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    peer_options(parser, OPERATORS, peers, trials, timeout)
    args = parser.parse_args()
    wanted = cases(args.only or only)
    path, options = checked(args, output or RESULTS / f"ops_b{args.batch}.jsonl")
    experiment = ops.experiment(path, options.peers)
    failed = experiment.run(wanted, partial(ops.bench_case, options=options), again=True)
    experiment.finish()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
