"""The paper's five networks in bfloat16 against OpenVINO and our float32 (about 70 minutes).

Claim: in bfloat16 the compiled networks are faster than OpenVINO as it comes, which is bfloat16
where the processor has it, at a smaller error against float32. Each is tuned in both precisions for
--timeout seconds; then five processes take turns. Makes .venv-openvino where OpenVINO is missing.
Continues where it was stopped: tuning logs are kept, rows of this machine are not measured again.
Writes results/bf16.jsonl and the table beside it.
Usage: python scripts/bf16.py [--timeout S] [--only resnet50 ...] [--precision bf16|auto]
       [--max-error E] [--turns N] [--logs DIR] [--output FILE]
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from ansorlite.cli.options import error_size, positive, seconds
from ansorlite.cli.paths import writable
from ansorlite.errors import UsageError
from ansorlite.target import Target
from bench import low_precision
from bench.experiment import RESULTS, exit_status, kept_folder
from bench.low_precision import LowPrecisionOptions, measured
from bench.peers import install
from bench.suite import networks as chosen


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--timeout", type=seconds, metavar="S", default=300.0, help="of each (300)")
    p.add_argument("--only", nargs="+", metavar="NAME", default=[], help="these networks")
    p.add_argument("--precision", choices=("bf16", "auto"), default="bf16", help="bf16")
    p.add_argument("--max-error", type=error_size, metavar="E", help="of --precision auto")
    p.add_argument("--turns", type=positive, metavar="N", default=9, help="of each process (9)")
    p.add_argument("--seed", type=int, metavar="K", default=0, help="0")
    p.add_argument("--logs", type=Path, metavar="DIR", help="tuning logs (the user's cache)")
    p.add_argument("--peer-python", metavar="F", help="interpreter that has OpenVINO")
    p.add_argument("--output", type=Path, metavar="F", default=RESULTS / "bf16.jsonl")
    args = p.parse_args()
    if args.max_error is not None and args.precision != "auto":
        raise UsageError("--max-error goes with --precision auto")
    wanted, path = chosen(args.only), writable(args.output)
    if args.peer_python is None:
        install(low_precision.PEERS_HERE)
    options = LowPrecisionOptions(
        args.precision,
        args.timeout,
        args.max_error,
        args.turns,
        args.seed,
        args.logs or kept_folder("bf16"),
        peer_python=args.peer_python,
    )
    fingerprint = Target.detect().fingerprint
    experiment = low_precision.experiment(path)
    known = {
        r.network
        for r in experiment.rows()
        if r.precision == args.precision and measured(r, options, fingerprint)
    }
    left = [name for name in wanted if name not in known]
    failed = experiment.run(left, partial(low_precision.bench_network, options=options))
    experiment.finish()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
