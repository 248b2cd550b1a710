"""ONNX's own tests, natively by the plain schedule: passed, refused with the reason, or wrong.

Claim: no test of the onnx wheel has a wrong answer or a crash; what is refused is counted by reason
(ten minutes). Cases run in child processes, so a crash costs one case and is counted. Needs the
checkout: the adapter is that of the tests, tests/graph/onnx_backend.py. Writes
results/onnx_node_tests.jsonl, a row for each reason, and the table onnx_node_tests.txt.
Usage: python scripts/onnx_node_tests.py [--kinds node simple pytorch-converted pytorch-operator]
       [--only NAME] [--meaning] [--table]
"""

import argparse
import json
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ansorlite.files import write_whole
from bench.experiment import RESULTS, Experiment, Row, exit_status, line_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "graph"))  # for the adapter

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
PORTION, LIMIT_S = 200, 600  # cases of a process, seconds of it
BAD = ("wrong", "crashed")
SHOWN_CASES = {"passed": 0, "refused": 3, "wrong": 99, "crashed": 99}  # names of a row
MOST_SHOWN = 12  # operators of a reason in the table


def cases(kind: str) -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind=kind))


def result(case: Any, native: bool) -> tuple[str, str]:
    """("passed" | "refused" | "wrong" | "crashed", why) of all data sets of a case."""
    from onnx_backend import outcome, sets

    try:
        for model, inputs, wanted in sets(case):
            why = outcome(case, model, inputs, wanted, native)
            if why != "passed":
                return "refused", why
    except AssertionError as error:
        return "wrong", str(error).strip()
    except Exception as error:  # whatever is no refusal
        return "crashed", f"{type(error).__name__}: {error}"
    return "passed", ""


def work(kind: str, first: int, last: int, native: bool) -> int:
    """A JSON line before and after each case, by its number."""
    warnings.simplefilter("ignore")
    for k, case in enumerate(cases(kind)[first:last], first):
        print(json.dumps([k, case.name, "crashed", "the process ended"]), flush=True)
        what, why = result(case, native)
        print(json.dumps([k, case.name, what, why[:400]]), flush=True)
    return 0


def results(kind: str, native: bool) -> Iterator[tuple[str, str, str]]:
    """(name, outcome, why) of every case; a child that ends early is followed by another."""
    first, count = 0, len(cases(kind))
    while first < count:
        command = [sys.executable, __file__, "--child", kind, str(first), str(first + PORTION)]
        command += ["--meaning"] * (not native)
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            text, told = ran.stdout, ran.stderr
        except subprocess.TimeoutExpired as error:
            raw = error.stdout or b""
            text, told = raw.decode() if isinstance(raw, bytes) else raw, "no end"
        done: dict[int, tuple[str, str, str]] = {}
        for line in text.splitlines():
            if line.startswith("["):
                k, name, what, why = json.loads(line)
                done[k] = name, what, why
        if not done:
            raise SystemExit(f"the child process did not start:\n{told}")
        yield from done.values()
        first = max(done) + 1


def operators(why: str) -> list[str]:
    """The operators that a refusal names."""
    many = re.search(r"unsupported operators?: (.*)", why)
    if many:
        return re.findall(r"(?:^|; )([\w.]+) \(node", many[1])
    one = re.match(r"node \S+ \(([\w.]+)\)", why)
    return [one[1]] if one else []


def rows_of(kind: str, found: Sequence[tuple[str, str, str]]) -> list[Row]:
    """A row for each outcome and reason, with the operators that it names and the first cases."""
    from onnx_backend import reason

    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, what, why in found:
        short = reason(why) if what == "refused" else why[:200]
        groups.setdefault((what, short), []).append((name, why))
    date = time.strftime("%Y-%m-%d")
    return [
        {
            "kind": kind,
            "outcome": what,
            "reason": short,
            "count": len(own),
            "operators": dict(Counter(op for _, why in own for op in operators(why)).most_common()),
            "cases": [name for name, _ in own[: SHOWN_CASES[what]]],
            "date": date,
        }
        for (what, short), own in sorted(groups.items(), key=lambda g: (g[0][0], -len(g[1])))
    ]


def table(rows: Sequence[Row]) -> str:
    lines = []
    for kind in dict.fromkeys(r["kind"] for r in rows):
        own = [r for r in rows if r["kind"] == kind]
        counts = Counter[str]()
        for r in own:
            counts[r["outcome"]] += r["count"]
        total = ", ".join(f"{counts[k]} {k}" for k in ("passed", "refused", *BAD))
        lines.append(f"{kind}: {sum(counts.values())} cases, {total}")
        for r in own:
            if r["outcome"] != "passed":
                lines.append(f"  {r['count']:4} {r['outcome']}: {r['reason'] or '?'}")
                named = [f"{op} {n}" for op, n in r["operators"].items()]
                more = [f"and {len(named) - MOST_SHOWN} more"] * (len(named) > MOST_SHOWN)
                shown = ", ".join([*named[:MOST_SHOWN], *more]) or ", ".join(r["cases"][:3])
                lines.append(f"       {shown}")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--only", help="print the outcome of the cases with this part of a name")
    parser.add_argument("--meaning", action="store_true", help="in numpy instead of natively")
    parser.add_argument("--table", action="store_true", help="only draw the table again")
    parser.add_argument("--output", type=Path, default=RESULTS / "onnx_node_tests.jsonl")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, first, last = args.child
        return work(kind, int(first), int(last), not args.meaning)
    if args.only:
        for kind in args.kinds:
            for case in cases(kind):
                if args.only in case.name:
                    print(case.name, *result(case, not args.meaning))
        return 0
    experiment = Experiment[Row](
        args.output,
        key=lambda r: (r["kind"], r["outcome"], r["reason"]),
        line=lambda r: f"{r['count']:5} {r['outcome']}: {r['reason']}",
        what="rows of ONNX's tests",
    )
    if not args.table:
        rows = [r for r in experiment.rows() if r["kind"] not in args.kinds]
        for kind in args.kinds:
            rows += rows_of(kind, list(results(kind, not args.meaning)))
        write_whole(args.output, "".join(map(line_of, rows)))
    experiment.finish(table(experiment.rows()))
    return int(any(r["outcome"] in BAD for r in experiment.rows()))


if __name__ == "__main__":
    sys.exit(exit_status(main))
