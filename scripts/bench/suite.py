"""The operators and networks that several claims are about.

In: what a command line names. Out: cases such as "C2D:2" and names of networks, in the order of
the tables. Shapes of operators stand in workloads/ops.toml.
"""

from collections.abc import Iterable, Sequence

from ansorlite.errors import UsageError
from ansorlite.workloads.networks import NETWORKS
from ansorlite.workloads.ops import find, operators, parse_case

# One case of each operator: what searches are compared on
CASES = (
    "C1D:1",
    "C2D:2",
    "C3D:1",
    "GMM:1",
    "GRP:1",
    "DIL:1",
    "DEP:1",
    "T2D:1",
    "CAP:1",
    "NRM:1",
    "SFM:1",
    "TBS:1",
)
# Those of them that compute more than they move
DENSE = tuple(c for c in CASES if c not in ("DEP:1", "NRM:1", "SFM:1", "TBS:1"))
# The networks of the Ansor paper
PAPER = ("resnet50", "mobilenet_v2", "resnet18_3d", "dcgan", "bert_base")


def cases(only: Iterable[str] = ()) -> list[str]:
    """All cases of the suite, or those of the given operators and cases, in the suite's order.

    >>> cases(["SFM", "c2d:3"])
    ['SFM:0', 'SFM:1', 'SFM:2', 'SFM:3', 'C2D:3']
    """
    out: list[str] = []
    for text in list(only) or list(operators()):
        if ":" in text:
            name, index = parse_case(text)
            out.append(f"{name}:{index}")
        else:
            op = find(text)
            out += [f"{op.name}:{k}" for k in range(len(op.cases))]
    return list(dict.fromkeys(out))


def networks(only: Sequence[str] = ()) -> list[str]:
    """The paper's five networks, or those given; UsageError for an unknown name."""
    for name in only:
        if name not in NETWORKS:
            raise UsageError(f"there is no network {name!r}: choose among {', '.join(NETWORKS)}")
    return list(dict.fromkeys(only)) or list(PAPER)
