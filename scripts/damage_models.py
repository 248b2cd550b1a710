"""Thousands of damaged ONNX files: each is one clear error, or a network with right answers.

Claim: whatever a file holds, `al.load_onnx` refuses with one ModelError line, or gives a network
that computes what onnxruntime computes (onnx's reference where that refuses or differs); no crash,
no other exception, no hang. Files are read in child processes with 8 GB of address space; networks
are evaluated in numpy, every tenth natively by the plain schedule.
Usage: python scripts/damage_models.py [--count 3400] [--seed 0] [--json FILE] [--only K]
"""

import argparse
import json
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from damaged_models import STORED, bits, cut, damaged, models, stored

ADDRESS_SPACE = 8 << 30
HANG_S = 60
MOST_BYTES = 16 << 20  # of a network that is evaluated
STORED_SHARE = 0.15  # of files that keep their weights in another
EVERY = 10  # networks of which one is compiled
BAD = ("crash", "hang", "traceback", "unclear error", "wrong answer")


def case(seed: int, k: int) -> tuple[str, bytes, bytes, str]:
    """(model, damaged file, file of weights or nothing, what was done) number k."""
    rng = np.random.default_rng((seed, k))
    sound = list(models().items())
    name, proto = sound[k % len(sound)]
    if rng.random() >= STORED_SHARE:
        data, how = damaged(proto, rng)
        return name, data, b"", how
    proto, weights = stored(proto)
    damage = (cut, bits)[rng.integers(2)]
    if rng.random() < STORED_SHARE:
        return name, proto.SerializeToString(), damage(weights, rng), f"weights: {damage.__name__}"
    data, how = damaged(proto, rng)
    return name, data, weights, f"stored, {how}"


# ---- the child ----------------------------------------------------------------------------------


def work(seed: int, first: int, last: int) -> None:
    """Outcomes of the cases first..last-1, one JSON line each, after a line for every phase."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    warnings.simplefilter("ignore")
    for k in range(first, last):
        name, data, weights, how = case(seed, k)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.onnx"
            path.write_bytes(data)
            if weights:
                path.with_name(STORED).write_bytes(weights)
            outcome, detail = check(path, k)
        say({"k": k, "model": name, "how": how, "outcome": outcome, "detail": detail[:400]})


def say(line: Any) -> None:
    print(json.dumps(line), flush=True)


def check(path: Path, k: int) -> tuple[str, str]:
    import ansorlite as al

    say("import")
    try:
        graph = al.load_onnx(path)
    except al.errors.ModelError as error:
        text = str(error)
        fits = text.isprintable() and len(text) < 1000
        return ("refused" if fits else "unclear error"), text
    except BaseException as error:
        return "traceback", f"{type(error).__name__}: {error}"
    size = sum(t.size for t in graph.types.values()) * 8
    if size > MOST_BYTES:
        return "imported, too large to run", ""
    return answers(graph, path, k % EVERY < 4)  # each model is damaged by every fourth case


def answers(graph: Any, path: Path, native: bool) -> tuple[str, str]:
    import ansorlite as al
    from ansorlite.graph.ir import evaluate
    from ansorlite.pipeline import compile_plain

    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal(t.shape).astype(t.dtype)
        if t.dtype.startswith("float")
        else rng.integers(0, 2, t.shape).astype(t.dtype)
        for t in (graph.types[v] for v in graph.inputs)
    ]
    say("run")
    try:
        results = [evaluate(graph, inputs)]
        if native:
            say("compile")
            got = compile_plain(graph)(*inputs)
            results.append(got if isinstance(got, tuple) else (got,))
    except al.errors.AnsorliteError as error:
        return "refused when it was compiled", str(error)
    except BaseException as error:
        return "traceback", f"{type(error).__name__}: {error}"
    kind = "compiled" if native else "evaluated"
    feeds = dict(zip(graph.inputs, inputs, strict=True))
    refusals, opinions = [], []
    for peer in (by_onnxruntime, by_reference):
        say(f"peer {peer.__name__}")
        try:
            wanted = peer(str(path), feeds)
        except Exception as error:
            refusals.append(f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        differ = {
            way: text
            for way, got in zip(("numpy", "native"), results, strict=False)
            if (text := difference(got, wanted))
        }
        if not differ:
            return f"{kind}, right", peer.__name__
        opinions.append(f"{peer.__name__}: {differ}")
    if opinions:
        return "wrong answer", "; ".join(opinions)
    return f"{kind}, peers refuse", refusals[0]


def by_onnxruntime(path: str, feeds: dict[str, Any]) -> list[Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def by_reference(path: str, feeds: dict[str, Any]) -> list[Any]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(onnx.load(path)).run(None, feeds))


def difference(got: Any, wanted: Any) -> str:
    """How two lists of arrays differ, or nothing."""
    for x, y in zip(got, wanted, strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{x.dtype}{list(x.shape)}, not {y.dtype}{list(y.shape)}"
        scale = np.abs(y[np.isfinite(y)]).max(initial=1e-3)
        wrong = ~np.isclose(x, y, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)
        if wrong.any():
            return f"{x[wrong][:4]}, not {y[wrong][:4]}, {wrong.sum()} of {wrong.size}"
    return ""


# ---- the parent ---------------------------------------------------------------------------------


def outcomes(seed: int, first: int, last: int) -> Iterator[dict[str, Any]]:
    """One outcome a case; a child that dies or hangs is replaced after the case that did that."""
    while first < last:
        child = subprocess.Popen(
            [sys.executable, __file__, "--worker", str(seed), str(first), str(last)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        phase = "start"
        for line in _lines(child):
            if isinstance(line, str):
                phase = line
            else:
                yield line
                first = line["k"] + 1
        hung = child.poll() is None
        child.kill()
        code = child.wait()
        if first < last:
            name, *_, how = case(seed, first)
            peer = phase.startswith("peer")
            outcome = "hang" if hung else "crash"
            yield {
                "k": first,
                "model": name,
                "how": how,
                "outcome": f"peer: {outcome}" if peer else outcome,
                "detail": f"during {phase}, status {code}",
            }
            first += 1


def _lines(child: Any) -> Iterator[Any]:
    """What a child says, until it ends, or says nothing for HANG_S seconds."""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        rest = b""
        while selector.select(HANG_S):
            data = os.read(child.stdout.fileno(), 1 << 16)
            if not data:
                child.wait()
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from (json.loads(line) for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=3400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="append the counts to this file")
    parser.add_argument("--only", type=int, help="the one case of this number, with its error")
    parser.add_argument("--worker", type=int, nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker)
        return 0
    first, last = (0, args.count) if args.only is None else (args.only, args.only + 1)
    found, bad = Counter[str](), []
    for row in outcomes(args.seed, first, last):
        found[row["outcome"]] += 1
        if row["outcome"] in BAD or args.only is not None:
            bad.append(row)
            print(f"{row['k']} {row['model']} {row['how']}\n  {row['outcome']}: {row['detail']}")
    for outcome, count in found.most_common():
        print(f"{count:6} {outcome}")
    failed = sum(found[kind] for kind in BAD)
    print(f"{found.total()} damaged files, {failed} crashes, tracebacks, hangs or wrong answers")
    if args.json:
        row = {"script": "damage_models", "seed": args.seed, "count": found.total(), **found}
        with args.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
