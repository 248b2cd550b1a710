"""numpy (OpenBLAS) for matrix products. In: {name, params}."""

from collections.abc import Callable
from typing import Any

import numpy as np


def prepare(options: dict[str, Any]) -> tuple[Callable[[], Any], str]:
    """(a product into memory that is there already, numpy's version)."""
    if options.get("name") != "GMM":
        raise ValueError(f"numpy has no call for {options.get('name')}, only for GMM")
    p, rng = options["params"], np.random.default_rng(0)
    a = rng.standard_normal((p["B"], p["N"], p["K"])).astype(np.float32)
    b = rng.standard_normal((p["B"], p["K"], p["M"])).astype(np.float32)
    out = np.empty((p["B"], p["N"], p["M"]), np.float32)
    if p["B"] == 1:  # OpenBLAS is called at once
        a, b, out = a[0], b[0], out[0]
    return lambda: np.matmul(a, b, out=out), f"numpy {np.__version__}"
