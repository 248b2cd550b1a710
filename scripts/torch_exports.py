"""Networks that PyTorch exports, unmodified, against onnxruntime and PyTorch itself (30 minutes).

Claim: small random networks (bench/torch_models.py) agree with onnxruntime and PyTorch on three
random inputs, to 1e-4 of the largest output, however they come: exported to ONNX by both of torch's
exporters, with sizes fixed and free (other sizes than those of the example are then given), by
`al.from_torch`, and by `torch.compile(backend="ansorlite")` without eager mode: native all of it
that torch hands over. Programs are those of `n_trials=0`. Needs torch 2.13, transformers,
onnxscript and the extras onnx and bench in this interpreter; each row runs in a process of its own.
Goes on where it stopped: rows that are right are kept. Writes results/torch_exports.jsonl and .txt.
Usage: python scripts/torch_exports.py [--networks 'vit*'] [--ways 'dynamo*'] [--again] [--table]
       [--keep DIR]
"""

import argparse
import contextlib
import io
import json
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite.errors import AnsorliteError, UsageError
from ansorlite.names import first_line
from bench.experiment import RESULTS, Experiment, Row, exit_status

WAYS = (
    "dynamo, fixed",
    "dynamo, free",
    "traced, fixed",
    "traced, free",
    "from_torch",
    "torch.compile",
)
RANDOM_INPUTS, MOST_ERROR = 3, 1e-4  # of the largest output
LIMIT_S = 600  # of one row
OPSETS = {"dynamo": None, "traced": 18}


# ---- the child ----------------------------------------------------------------------------------


class NotExported(Exception):
    """torch itself cannot export the network this way."""


def exported(torch: Any, network: Any, module: Any, way: str, path: Path) -> None:
    """Write the network to `path` as this way does; NotExported where torch cannot."""
    exporter, _, kind = way.partition(", ")
    example = network.values(network.example, 0)
    options: dict[str, Any] = {
        "input_names": list(network.inputs),
        "output_names": list(network.outputs),
        "opset_version": OPSETS[exporter],
        "dynamo": exporter == "dynamo",
    }
    if kind == "free":
        if exporter == "dynamo":
            dims = {name: torch.export.Dim(name) for name in network.example}
            rows = {name: network.extents(name, dims) for name in network.inputs}
            options["dynamic_shapes"] = {
                name: {k: e for k, e in enumerate(row) if not isinstance(e, int)}
                for name, row in rows.items()
            }
        else:
            options["dynamic_axes"] = {
                name: {
                    k: e.translate({ord(c): "_" for c in " +*"})
                    for k, e in enumerate(given.shape)
                    if isinstance(e, str)
                }
                for name, given in network.inputs.items()
            }
    quiet = contextlib.redirect_stdout(io.StringIO())
    try:
        with torch.no_grad(), quiet:
            torch.onnx.export(module, tuple(example.values()), str(path), **options)
    except Exception as error:  # torch's own kinds
        causes = [error]
        while causes[-1].__cause__ is not None:
            causes.append(causes[-1].__cause__)
        raise NotExported(f"{type(causes[-1]).__name__}: {causes[-1]}"[:400]) from error


def compiled_onnx(network: Any, path: Path, way: str) -> Any:
    """The module of ansorlite of the exported file; free sizes are `network.other`."""
    import ansorlite as al

    if way.endswith("fixed"):
        graph = al.load_onnx(path)
    elif list(network.other) == ["batch"]:
        graph = al.load_onnx(path, batch=network.other["batch"])
    else:
        shapes = {name: network.extents(name, network.other) for name in network.inputs}
        graph = al.load_onnx(path, shapes=shapes)
    return al.auto_schedule(graph, n_trials=0, progress=False)


def difference(got: Any, wanted: Any) -> float:
    """The largest difference as a share of what is allowed; infinite where kinds differ."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    if not np.array_equal(np.isnan(got), np.isnan(wanted)):
        return float("inf")
    x, y = np.nan_to_num(got.astype(np.float64)), np.nan_to_num(wanted.astype(np.float64))
    apart, largest = float(np.abs(x - y).max()), float(np.abs(y).max())
    return 0.0 if apart == 0 else apart / (MOST_ERROR * largest) if largest else float("inf")


def _list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def check(name: str, way: str, folder: Path, say: Callable[..., None]) -> None:
    """Export, import, compile, run and compare; what is known is said after each step."""
    import torch

    import ansorlite as al
    from bench.torch_models import ARCHITECTURES

    network = ARCHITECTURES[name]
    module, path = network.module(), folder / "model.onnx"
    sizes = network.example
    runtime = None
    with torch.no_grad():
        if way in ("from_torch", "torch.compile"):
            example = tuple(network.values(sizes, 0).values())
            began = time.perf_counter()
            if way == "from_torch":
                net = al.from_torch(module, example)
                call = al.auto_schedule(net, n_trials=0, progress=False)
            else:
                torch._dynamo.config.allow_rnn = True  # by default torch leaves those in eager mode
                call = torch.compile(module, backend="ansorlite", dynamic=False)
                call(*example)
            say(compile_s=time.perf_counter() - began)
        else:
            import onnx
            import onnxruntime

            exported(torch, network, module, way, path)
            ops = {n.op_type for n in onnx.load(path, load_external_data=False).graph.node}
            say(operators=len(ops))
            sizes = network.example if way.endswith("fixed") else network.other
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            cpu = ["CPUExecutionProvider"]
            runtime = onnxruntime.InferenceSession(str(path), options, providers=cpu)
            feeds = {k: x.numpy() for k, x in network.values(sizes, 0).items()}
            try:
                runtime.run(None, feeds)
            except Exception as error:  # of onnxruntime
                why = f"the file does not run in onnxruntime either: {first_line(error)}"
                raise NotExported(why[:400]) from error
            began = time.perf_counter()
            native = compiled_onnx(network, path, way)
            say(compile_s=time.perf_counter() - began)
            call = lambda *xs: native(*(x.numpy() for x in xs))  # noqa: E731
        worst = 0.0
        for seed in range(1, 1 + RANDOM_INPUTS):
            values = network.values(sizes, seed)
            got = _list(call(*values.values()))
            wanted = [_list(module(*values.values()))]
            if runtime is not None:
                wanted.append(runtime.run(None, {k: x.numpy() for k, x in values.items()}))
            for each in wanted:
                pairs = zip(got, each, strict=True)
                worst = max(worst, *(difference(x, y) for x, y in pairs))
    if way == "torch.compile" and not torch._dynamo.utils.counters["stats"]["unique_graphs"]:
        say(outcome="eager", why="torch hands no graph to the backend")
        return
    right = worst <= 1
    why = "" if right else f"{worst:.3g} times the difference that is allowed"
    say(outcome="right" if right else "wrong", why=why, error=worst)


def work(name: str, way: str, folder: Path) -> int:
    def say(**fields: Any) -> None:
        print(json.dumps(fields), flush=True)

    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            check(name, way, folder, say)
        eager = [str(w.message) for w in told if "eager mode" in str(w.message)]
        if eager:
            say(outcome="eager", why=first_line(eager[0]))
    except NotExported as error:
        say(outcome="torch", why=str(error))
    except AnsorliteError as error:
        by_torch = str(error).startswith("PyTorch cannot export")
        say(outcome="torch" if by_torch else "refused", why=str(error))
    except Exception as error:  # of onnxruntime too; a traceback of ours is a crash
        say(outcome="crashed", why=f"{type(error).__name__}: {error}"[:500])
    return 0


# ---- the parent ---------------------------------------------------------------------------------


def row_of(name: str, way: str, keep: Path | None) -> Row:
    row: Row = {"network": name, "way": way, "outcome": "crashed", "why": ""}
    with tempfile.TemporaryDirectory() as scratch:
        folder = (
            keep / f"{name}, {way}".replace(", ", "-").replace(" ", "-") if keep else Path(scratch)
        )
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, "--child", name, way, str(folder)]
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            text, row["why"] = ran.stdout, f"status {ran.returncode}: {ran.stderr.strip()[-300:]}"
        except subprocess.TimeoutExpired as error:
            raw = error.stdout or b""
            text = raw.decode() if isinstance(raw, bytes) else raw
            row["why"] = f"no end within {LIMIT_S} s"
    for line in text.splitlines():
        if line.startswith("{"):
            row |= json.loads(line)
    return row | {"date": time.strftime("%Y-%m-%d")}


HEAD = f"{'network':20} {'way':14} {'outcome':8} {'operators':>9} {'compile':>9} {'error':>7}"


def table_line(row: Row) -> str:
    compile_s, error = row.get("compile_s"), row.get("error")
    line = (
        f"{row['network']:20} {row['way']:14} {row['outcome']:8} {row.get('operators', ''):>9} "
        f"{'' if compile_s is None else f'{compile_s:.1f} s':>9} "
        f"{'' if error is None else f'{error:.3f}':>7}"
    ).rstrip()
    return f"{line}\n    {row['why']}" if row["why"] else line


def closing(rows: Sequence[Row]) -> list[str]:
    count = {x: sum(r["outcome"] == x for r in rows) for x in ("right", "torch")}
    return [
        f"{count['right']} of {len(rows)} are right, {count['torch']} torch itself cannot export; "
        "error: the largest difference from onnxruntime and PyTorch as a share of what is allowed"
    ]


def check_packages() -> None:
    """UsageError where a package is missing."""
    from importlib.util import find_spec

    needed = ("torch", "transformers", "onnxscript", "onnx", "onnxruntime")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} not installed: pip install {' '.join(missing)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", default="*", help="pattern of names")
    parser.add_argument("--ways", default="*", help=f"pattern of {', '.join(map(repr, WAYS))}")
    parser.add_argument("--again", action="store_true", help="rows that are right, too")
    parser.add_argument("--table", action="store_true", help="only draw the table again")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the exported files there")
    parser.add_argument("--output", type=Path, default=RESULTS / "torch_exports.jsonl")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, way, folder = args.child
        return work(name, way, Path(folder))
    experiment = Experiment[Row](
        args.output,
        key=lambda r: (r["network"], r["way"]),
        line=table_line,
        head=HEAD,
        foot=closing,
        order=lambda r: (r["network"], WAYS.index(r["way"])),
        what="rows of PyTorch's exports",
    )
    if not args.table:
        check_packages()
        from bench.torch_models import ARCHITECTURES

        wanted = [
            (name, way)
            for name in ARCHITECTURES
            for way in WAYS
            if fnmatch(name, args.networks) and fnmatch(way, args.ways)
        ]
        experiment.run(
            wanted,
            lambda key: row_of(*key, args.keep),
            done=lambda r: r["outcome"] in ("right", "torch"),
            again=args.again,
        )
    experiment.finish()
    return int(any(r["outcome"] not in ("right", "torch") for r in experiment.rows()))


if __name__ == "__main__":
    sys.exit(exit_status(main))
