"""Names of the features of a statement, in order, and the kind of each.

In: nothing. Out: FEATURE_NAMES; AT, the index of each name; LOGGED, the indices of magnitudes
stored as log2(1 + x) with x in bytes, elements, executions or cycles; PLAIN, the other indices.
`cost.features` computes the values.
"""

import numpy as np

MAX_BUFFERS = 5
CURVE = 10

# Kinds of cycles of the analytic estimate.
CYCLES = ("compute", "register", "issue", "beyond_l1", "beyond_l2", "beyond_l3")
ARITHMETIC = ("mad", "addsub", "mul", "div", "minmax")
COMPUTE = (*ARITHMETIC, "math", "compare", "select")
_LOOPS = (
    "rows",
    "vectors",
    "lanes",
    "registers",
    "vector_fill",
    "unroll",
    "prefetch",
    "stream",
    "parallel_grains",
    "parallel_balance",
    "parallel_share",
    "inner_reduction",
    "outer_reduction",
)
_ACCESS = (
    "read",
    "write",
    "bytes",
    "unique_bytes",
    "lines",
    "unique_lines",
    "reuse_loop",
    "reuse_serial",
    "reuse_none",
    "reuse_iterations",
    "reuse_bytes",
    "reuse_count",
    "bytes_per_reuse",
    "unique_bytes_per_reuse",
    "lines_per_reuse",
    "unique_lines_per_reuse",
    "inner_stride",
    "contiguous",
)
_REST = (
    *(f"intensity_{k}" for k in range(CURVE)),
    "alloc_bytes",
    "alloc_total",
    "alloc_outer",
    "alloc_inner",
    "executions",
    "loops",
    "beyond_l1",
    "beyond_l2",
    "beyond_l3",
    "gathered",
    "register_loads",
    "work_share",
    *(f"cycles_{k}" for k in (*CYCLES, "all")),
)
FEATURE_NAMES: tuple[str, ...] = (
    *COMPUTE,
    *_LOOPS,
    *(f"buffer{b}_{n}" for b in range(MAX_BUFFERS) for n in _ACCESS),
    *_REST,
)
N_FEATURES = len(FEATURE_NAMES)
AT = {name: k for k, name in enumerate(FEATURE_NAMES)}
_PLAIN = {
    *("rows", "vectors", "lanes", "registers", "vector_fill", "stream"),
    *("parallel_balance", "parallel_share", "loops", "register_loads", "work_share"),
    *(f"intensity_{k}" for k in range(CURVE)),
    *(f"buffer{b}_{n}" for b in range(MAX_BUFFERS) for n in ("read", "write")),
    *(f"buffer{b}_reuse_{n}" for b in range(MAX_BUFFERS) for n in ("loop", "serial", "none")),
}
PLAIN = np.array([k for k, name in enumerate(FEATURE_NAMES) if name in _PLAIN])
LOGGED = np.array([k for k, name in enumerate(FEATURE_NAMES) if name not in _PLAIN])
