"""The closing tables, as text."""

import math

import pytest

from ansorlite.tables import TaskRow, task_table, time_table

CONV = TaskRow("conv2d_56x56x64_3x3", 2.31e8, 3, 1.25e-3, 192, 1.2e-3)


TASKS = """\
ID  Task                                   FLOP  Weight   Latency  GFLOP/s  Peak  Limit  Trials
--  --------------------------------  ---------  ------  --------  -------  ----  -----  ------
 0  conv2d_56x56x64_3x3               231 MFLOP       3  1.250 ms    184.8  92 %   96 %     192
 1  a name that is long... should be     0 FLOP     2.5  100.0 us        -     -   60 %       8
--  --------------------------------  ---------  ------  --------  -------  ----  -----  ------
    total                             693 MFLOP          4.000 ms    173.2  87 %   94 %     200"""

UNKNOWN = """\
ID  Task                       FLOP  Weight   Latency  GFLOP/s  Peak  Limit  Trials
--  -------------------  ----------  ------  --------  -------  ----  -----  ------
 0  conv2d_56x56x64_3x3   231 MFLOP       3  1.250 ms    184.8     -   96 %     192
 1  -                     420 MFLOP       1         -        -     -      -      64
--  -------------------  ----------  ------  --------  -------  ----  -----  ------
    total                1.11 GFLOP                 -        -     -      -     256"""

PHASES = """\
Phase            Time  Share
---------  ----------  -----
search          8.2 s  8.2 %
training        0.9 s  0.9 %
building        0.0 s  0.0 %
measuring  1 min 00 s   60 %
checking        0.0 s  0.0 %
compiling       2.0 s  2.0 %
other            29 s   29 %
---------  ----------  -----
total      1 min 40 s  100 %"""


def test_tasks_with_totals() -> None:
    rows = [CONV, TaskRow("a name that is longer than any column should be", 0, 2.5, 1e-4, 8, 6e-5)]
    assert task_table(rows, 2e11) == TASKS


def test_shares_of_the_peak_above_100_percent_are_explained() -> None:
    fast = TaskRow("conv", 2.31e8, 3, 1e-3, 8, above="Winograd's form needs fewer operations")
    odd = TaskRow("other", 2.31e8, 3, 1e-3, 8)
    table = task_table([CONV, fast, odd], 2e11)
    assert table.splitlines()[-2:] == [
        "Peak above 100 %: Winograd's form needs fewer operations (ID 1)",
        "Peak above 100 %: the limit is measured too low (ID 2)",
    ]
    many = task_table([fast] * 11, 2e11).splitlines()
    assert many[-1].endswith("(ID 0, 1, 2, 3, 4, 5, 6, 7 and 3 more)")
    slow, quick = (TaskRow("x", 1e8, 1, 1e-3, 8, peak_flop_per_s=p) for p in (1e11, 4e11))
    shares = [line.split("%")[0].split()[-1] for line in task_table([slow, quick]).splitlines()]
    assert [shares[2], shares[3], shares[-1]] == ["100", "25", "62"]
    assert "above" not in task_table([fast]) and "above" not in task_table([CONV], 2e11)


def test_a_name_stays_on_its_line() -> None:
    for name in ("a\nb", "\x1b[2J", "\u202e", "x" * 10_000):
        text = task_table([TaskRow(name, 1.0, 1, 1e-3, 8)])
        assert text.count("\n") == 4 and text.replace("\n", "").isprintable()
        assert max(map(len, text.split("\n"))) < 120


@pytest.mark.parametrize("latency", [None, math.inf])
def test_a_total_over_an_unknown_latency_is_unknown(latency: float | None) -> None:
    assert task_table([CONV, TaskRow("", 4.2e8, 1, latency, 64)]) == UNKNOWN


def test_a_table_without_tasks() -> None:
    assert task_table([]).splitlines()[-1].split() == ["total", "0", "FLOP", *"----", "0"]


def test_where_the_time_went() -> None:
    seconds = {"measuring": 60.0, "search": 8.2, "training": 0.9, "compiling": 2.0}
    assert time_table(seconds, 100.0) == PHASES


def test_a_part_of_a_phase_stands_below_it() -> None:
    seconds = {"search": 1.0, "building": 2.0, "search while building": 3.0}
    lines = time_table(seconds, 10.0).splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["search", "search", "training"]
    assert lines[-3].split() == ["other", "4.0", "s", "40", "%"]


def test_phases_that_overlap_leave_no_rest() -> None:
    lines = time_table({"building": 8.0, "measuring": 8.0}, 10.0).splitlines()
    assert lines[-3].split() == ["other", "0.0", "s", "0.0", "%"]
    assert time_table({}, 0.0).splitlines()[-1].split() == ["total", "0.0", "s", "-"]
