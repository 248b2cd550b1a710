"""Damaged saved networks: each is refused by one ModelError, or still gives the right answer.

Two networks are saved, for two targets each where this machine runs AVX2; then, `--count` times,
one of the folders is damaged (cut, grown, flipped, edited, mixed with the other, made incomplete),
and a forked process loads and calls what is left. Crashes, hangs, tracebacks and wrong answers are
listed, and make the exit status 1.

    python scripts/damage_saved.py --count 3300 --seed 0 --json results/damage_saved.jsonl
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ansorlite.deployed import load_module
from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.manifest import DESCRIBED, LIBRARY, METADATA, sealed
from ansorlite.pipeline import auto_schedule
from ansorlite.search.policy import EvolutionParams
from ansorlite.target import Target

NEAR = 200  # bytes from the ends at which files are cut
HANGS_S = 60
OUTCOMES = ("right", "refused", "wrong", "traceback", "crash")
X = np.random.default_rng(0).standard_normal((1, 3, 12, 12)).astype(np.float32)
Damage = Callable[[random.Random, Path, Path], str]


def network(seed: int) -> Graph:
    """A convolution, a pool and a dense layer."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"network {seed}")
    x = b.input("x", X.shape)
    window = {"strides": (1, 1), "pads": ((1, 1),) * 2, "groups": 1, "dilations": (1, 1)}
    weights = b.constant(rng.standard_normal((8, 3, 3, 3)).astype(np.float32))
    y = b.emit("conv", [x, weights], layout="channels_first", **window)
    y = b.emit("reduce_sum", [b.emit("relu", [y])], axes=(2, 3), keepdims=False)
    return b.finish([b.emit("matmul", [y, b.constant(rng.standard_normal((8, 5), np.float32))])])


# ---- damage: (rng, a copy of the folder, the other network's) -> what was done ------------------


def _some(rng: random.Random, folder: Path) -> Path:
    return folder / rng.choice(sorted(p.name for p in folder.iterdir()))


def _write(file: Path, data: bytes) -> None:
    file.unlink()  # the bytes are shared with the undamaged folder
    file.write_bytes(data)


def cut(rng: random.Random, folder: Path, other: Path) -> str:
    file = _some(rng, folder)
    data = file.read_bytes()
    size = rng.choice([rng.randrange(NEAR), len(data) - 1 - rng.randrange(NEAR)])
    size = max(0, min(size, len(data) - 1))
    _write(file, data[:size])
    return f"{file.name} cut to {size} of {len(data)} bytes"


def grown(rng: random.Random, folder: Path, other: Path) -> str:
    file = _some(rng, folder)
    more = rng.choice([b"\0", b"\n", b" ", rng.randbytes(rng.randrange(1, 5000))])
    _write(file, file.read_bytes() + more)
    return f"{file.name} grown by {len(more)} bytes"


def flipped(rng: random.Random, folder: Path, other: Path) -> str:
    file = _some(rng, folder)
    data = bytearray(file.read_bytes())
    bits = [rng.randrange(8 * len(data)) for _ in range(rng.choice([1, 1, 1, 2, 8]))]
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    _write(file, bytes(data))
    return f"{file.name}, bits {bits} flipped"


def edited(rng: random.Random, folder: Path, other: Path) -> str:
    """A number or a word of the manifest; every other time its sums are made to fit."""
    file = folder / METADATA
    text = file.read_text()
    place = rng.choice([*re.finditer(r"(?<=[ \[])-?\d+|\"[^\"]*\"", text)])
    old = place[0]
    wrong = ["0", "-1", "1", "4294967296", "1" + "0" * 30, "1e999", "NaN", "true", "null", '"x"']
    wrong += ["[]", "{}", f'"{old[1:-1]}x"', f"{old[:-1]}7", f"{old}0", f'"../{LIBRARY}"']
    new = rng.choice(wrong)
    text = text[: place.start()] + new + text[place.end() :]
    if rng.random() < 0.5:
        try:
            found = json.loads(text)
            text = json.dumps(sealed({k: found[k] for k in DESCRIBED}, found["files"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
    _write(file, text.encode())
    return f"{METADATA}: {old[:40]} is now {new[:40]}"


def mixed(rng: random.Random, folder: Path, other: Path) -> str:
    names = sorted({p.name for p in folder.iterdir()} & {p.name for p in other.iterdir()})
    taken = rng.sample(names, rng.choice([1, 1, 2]))
    if rng.random() < 0.2:
        taken = [n for n in names if n != METADATA]
    for name in taken:
        _write(folder / name, (other / name).read_bytes())
    return f"{', '.join(taken)} of the other network"


def swapped(rng: random.Random, folder: Path, other: Path) -> str:
    """Two files of one folder change their names."""
    a, b = (folder / n for n in rng.sample(sorted(p.name for p in folder.iterdir()), 2))
    a.rename(folder / "third")
    b.rename(a)
    (folder / "third").rename(b)
    return f"{a.name} and {b.name} swapped"


def incomplete(rng: random.Random, folder: Path, other: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    gone = rng.sample(names, rng.choice([1, 1, 2, len(names)]))
    for name in gone:
        (folder / name).unlink()
        if rng.random() < 0.2:
            rng.choice([Path.mkdir, os.mkfifo, lambda p: p.symlink_to(p)])(folder / name)
    return f"{', '.join(gone)} gone"


DAMAGES: tuple[Damage, ...] = (cut, flipped, edited, cut, flipped, edited, mixed, grown, swapped)
DAMAGES += (incomplete,)


# ---- what comes of it ---------------------------------------------------------------------------


def outcome(folder: Path, want: np.ndarray, said: Path) -> str:
    """Load and call a folder in a forked process."""
    child = os.fork()
    if child == 0:
        signal.alarm(HANGS_S)
        status = OUTCOMES.index("traceback")
        try:
            got = load_module(folder)(X)
            status = OUTCOMES.index("right" if np.array_equal(got, want) else "wrong")
        except ModelError as error:
            status = OUTCOMES.index("refused" if "\n" not in str(error) else "traceback")
        except BaseException as error:
            said.write_text(f"{type(error).__name__}: {error}")
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return OUTCOMES[os.WEXITSTATUS(status)] if os.WIFEXITED(status) else "crash"


def right_answer(folder: Path, scratch: Path) -> np.ndarray:
    """The answer of the undamaged folder, found in a process of its own: this one stays single."""
    child = os.fork()
    if child == 0:
        np.save(scratch / "want.npy", load_module(folder)(X))
        os._exit(0)
    os.waitpid(child, 0)
    return np.load(scratch / "want.npy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=3300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="counts are appended to it")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[tuple[str, str]] = Counter()
    bad = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        few = EvolutionParams(population=32, generations=1, looked_at_first=4)
        names = ["native"] if Target.cross("x86-64-v3").is_foreign else ["native", "x86-64-v3"]
        nets = []
        for k in range(2):
            module = auto_schedule(network(k), 0, params=few, progress=False)
            nets.append(module.save(scratch / f"net{k}", targets=names))
        want = right_answer(nets[0], scratch)
        for k in range(args.count):
            rng = random.Random(f"{args.seed} {k}")
            damage = DAMAGES[k % len(DAMAGES)]
            folder = Path(shutil.copytree(nets[0], scratch / "damaged", copy_function=os.link))
            told = damage(rng, folder, nets[1])
            found = outcome(folder, want, scratch / "said")
            counts[damage.__name__, found] += 1
            if found not in ("right", "refused"):
                said = scratch / "said"
                bad.append(f"{k}: {told}: {found} {said.read_text() if said.exists() else ''}")
                print(bad[-1], file=sys.stderr)
            (scratch / "said").unlink(missing_ok=True)
            shutil.rmtree(folder)
    total = {o: sum(n for (_, x), n in counts.items() if x == o) for o in OUTCOMES}
    kinds = {d.__name__: {o: counts[d.__name__, o] for o in OUTCOMES[:2]} for d in DAMAGES}
    row = {"folders": args.count, "seed": args.seed, **total, "kinds": kinds}
    print(json.dumps(row))
    if args.json:
        with args.json.open("a") as out:
            out.write(json.dumps(row) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
