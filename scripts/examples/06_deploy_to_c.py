"""Deploy to C: a network becomes a shared library with a header, called by a C program.

Usage: python scripts/examples/06_deploy_to_c.py (some ten seconds; needs `cc`, no extras).
"""

import subprocess
import tempfile
from pathlib import Path

import numpy as np

import ansorlite as al
from ansorlite.graph.build import GraphBuilder

PROGRAM = r"""
#include <stdio.h>
#include "network.h"
int main(void) {
  static float x[64], y[10];
  const char *error = 0;
  network *net = network_open("weights.bin", &error);
  if (!net) { fprintf(stderr, "%s\n", error); return 1; }
  for (int k = 0; k < 64; k++) x[k] = (float)k / 64;
  const void *inputs[] = {x}; /* in the order that network.h describes */
  void *outputs[] = {y};
  if (network_run(net, inputs, outputs)) { fprintf(stderr, "%s\n", network_why(net)); return 1; }
  for (int k = 0; k < 10; k++) printf("%.9g ", y[k]);
  network_close(net);
}
"""


def two_layers() -> al.Graph:
    """x[1, 64] -> relu(x @ w1) @ w2, [1, 10]. For an ONNX file: al.load_onnx("model.onnx")."""
    b, rng = GraphBuilder("two_layers"), np.random.default_rng(0)
    w1 = b.constant(rng.standard_normal((64, 128), np.float32), "w1")
    w2 = b.constant(rng.standard_normal((128, 10), np.float32), "w2")
    hidden = b.emit("relu", [b.emit("matmul", [b.input("x", (1, 64)), w1])])
    return b.finish([b.emit("matmul", [hidden, w2], "y")])


def main(folder: Path) -> None:
    module = al.auto_schedule(two_layers(), n_trials=8, seed=0, progress=False)
    saved = module.save(folder / "net")
    print("saved:", ", ".join(sorted(f.name for f in saved.iterdir())))

    (saved / "main.c").write_text(PROGRAM)
    subprocess.run(["cc", "main.c", "./libnetwork.so", "-o", "main"], cwd=saved, check=True)
    ran = subprocess.run(["./main"], cwd=saved, check=True, capture_output=True, text=True)
    from_c = np.array(ran.stdout.split(), np.float32)
    x = (np.arange(64, dtype=np.float32) / 64)[None]
    np.testing.assert_allclose(from_c, module(x)[0], rtol=1e-5)
    np.testing.assert_array_equal(al.load_module(saved)(x), module(x))  # that needs numpy alone
    print("C, al.load_module and the module agree:", from_c[:4])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
