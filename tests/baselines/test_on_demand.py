"""The wing is loaded when a searcher of it is used, and not before."""

import subprocess
import sys

from ansorlite.search.searchers import SEARCHERS, loaded

DEFAULT = """
import sys
import ansorlite as al
from ansorlite import te
from ansorlite.search.searchers import SEARCHERS

x = te.placeholder((8,), name="X")
task = al.SearchTask([te.compute((8,), lambda i: x[i] + 1, name="Y")])
al.tune(task, n_trials=0, progress=False, policy=sys.argv[1])
print(*(name for name in sys.modules if name.startswith("ansorlite.baselines.")))
"""


def modules(policy: str) -> set[str]:
    """The baselines' modules that a process has loaded after a search."""
    out = subprocess.run(
        [sys.executable, "-c", DEFAULT, policy], capture_output=True, text=True, check=True
    ).stdout
    return set(out.split())


def test_the_default_search_loads_no_baseline() -> None:
    assert modules("evolutionary") == set()


def test_a_baseline_is_loaded_when_it_is_asked_for() -> None:
    assert modules("beam") == {"ansorlite.baselines.beam"}


def test_every_row_names_what_exists() -> None:
    for name, row in SEARCHERS.items():
        for place in (row.maker, row.loader):
            if isinstance(place, str) and place:
                assert callable(loaded(place)), name
