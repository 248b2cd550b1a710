"""The operator suite at sizes that take milliseconds, for tests: parameters by operator.

Extents are odd where operators allow, so that no tile divides all of them.
"""

SMALL = {
    "C1D": {"N": 1, "L": 13, "CI": 5, "CO": 19, "k": 3, "s": 2, "p": 1},
    "C2D": {"N": 2, "H": 9, "W": 7, "CI": 6, "CO": 18, "k": 3, "s": 1, "p": 1},
    "C3D": {"N": 1, "D": 4, "H": 5, "W": 7, "CI": 3, "CO": 16, "k": 3, "s": 2, "p": 1},
    "GMM": {"B": 2, "N": 17, "M": 33, "K": 20},
    "GRP": {"N": 1, "H": 8, "W": 9, "CI": 8, "CO": 32, "k": 3, "s": 1, "p": 1, "d": 1, "g": 2},
    "DIL": {"N": 1, "H": 11, "W": 9, "CI": 4, "CO": 16, "k": 3, "s": 1, "p": 2, "d": 2},
    "DEP": {"N": 1, "H": 9, "W": 10, "C": 20, "k": 3, "s": 2, "p": 1},
    "T2D": {"N": 1, "H": 5, "W": 4, "CI": 6, "CO": 16, "k": 4, "s": 2, "p": 1},
    "CAP": {"N": 1, "H": 6, "W": 5, "CI": 3, "CO": 16, "k": 3, "s": 2, "p": 1},
    "NRM": {"B": 1, "M": 40, "N": 33},
    "SFM": {"M": 12, "N": 45},
}
