"""Legal rows of sketches in which hardly any draw is legal: illegal draws, changed hole by hole.

In: one sketch and draws of its holes. Out: legal rows. A step gives one hole of each row another
option, and keeps that unless the row then breaks more conditions (`space.legality`) than before.
Where several tiles have to fit each other, as in kernels of several anchors or in Winograd's form
of large images, one draw of thousands is legal: a search would have nothing to begin with.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ansorlite.search.evolve import Rows
from ansorlite.search.select import unique_rows

STEPS = 48
PATIENCE = 16  # steps without any legal row, after which there are none


def mended(
    rows: Rows,
    options: npt.NDArray[np.int64],
    broken: Callable[[Rows], npt.NDArray[np.float64]],
    rng: np.random.Generator,
) -> Rows:
    """The rows that break no condition in the end, none twice.

    `options` counts those of each hole; `broken` counts the conditions that each row breaks.
    """
    if not len(options):
        return rows[:0]
    rows = rows.copy()
    counts = broken(rows)
    for step in range(STEPS):
        left = np.flatnonzero(counts > 0)
        if not len(left) or (step >= PATIENCE and len(left) == len(rows)):
            break
        new = rows[left]
        holes = rng.integers(0, len(options), len(left))
        new[np.arange(len(left)), holes] = rng.integers(0, options[holes])
        now = broken(new)
        better = now <= counts[left]
        rows[left[better]], counts[left[better]] = new[better], now[better]
    legal: Rows = rows[counts == 0]
    kept: Rows = legal[unique_rows(legal)]
    return kept
