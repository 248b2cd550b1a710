"""The page of `ansorlite report`: its content from a small log, and how a browser shows it."""

import html as markup
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_cases import record, write

import ansorlite
from ansorlite.cli import main
from ansorlite.codegen.hot_loop import hot_loop
from ansorlite.errors import MissingExtra
from ansorlite.graph.profile import KernelTime, Moved, Profile
from ansorlite.measure.peak import Peak
from ansorlite.records import LogContents, RecordLog
from ansorlite.report import results
from ansorlite.report.page import Page, html
from ansorlite.report.results import gather
from ansorlite.search.tune_tasks import WeightedTask
from ansorlite.target import Target
from ansorlite.task import SearchTask

pytest.importorskip("jinja2", reason="extra report")
pytest.importorskip("matplotlib", reason="extra report")

VOID = {"meta", "br", "path", "use", "circle", "rect", "line"}
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
EVIL = "</pre><script>alert(1)</script> \"'><img src=x onerror=alert(1)> {{ 7*7 }} \x1b[2J\ud800"


class Reader(HTMLParser):
    """Text, tags and attributes of a page; fails where tags are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags, self.attributes = "", list[str](), list[tuple[str, str | None]]()
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def task() -> SearchTask:
    found: SearchTask = ansorlite.workload("GMM:0")
    return found


@pytest.fixture(autouse=True)
def kept_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limits of the machine that runs the tests."""
    monkeypatch.setattr(results, "calibration", lambda target: None)
    monkeypatch.setattr(results, "cached_peak", lambda target: Peak(2e11, 1e11, 2e10))


def log(path: Path, task: SearchTask, name: str = "") -> Path:
    """Five trials, the fourth is the best, the second failed; a torn line."""
    fields: dict[str, Any] = {"task_name": name or task.name, "build_s": 0.5, "run_s": 0.25}
    latencies = (4e-3, None, 2e-3, 1e-3, 3e-3)
    write(
        path,
        [
            record(
                task,
                k,
                latency_s=s,
                status="OK" if s else "RUN_TIMEOUT",
                timestamp=1.79e9 + k + 500 * (k > 2),
                **fields,
            )
            for k, s in enumerate(latencies)
        ],
    )
    with path.open("a") as file:
        file.write('{"format":1,"ta')
    return path


def test_figures_of_a_log(tmp_path: Path, task: SearchTask) -> None:
    with RecordLog(log(tmp_path / "log", task)) as file:
        contents = file.contents
    (machine,) = gather(contents, [WeightedTask(task, 3.0)])
    assert machine.target == Target.detect() and machine.latency_s == pytest.approx(3e-3)
    (own,) = machine.tasks
    assert (own.latency_s, own.flop, dict(own.failures)) == (1e-3, task.flop, {"RUN_TIMEOUT": 1})
    assert own.curve.trials.tolist() == [1, 3, 4, 5]
    assert own.curve.latency_s.tolist() == [4e-3, 2e-3, 1e-3, 1e-3]
    # The pause of 500 s between the third and the fourth is left out.
    assert own.curve.seconds.tolist() == pytest.approx([0.75, 2.75, 3.5, 4.5])
    assert machine.wall_s == pytest.approx(4.5)
    assert machine.seconds == {"building": 2.5, "measuring": 1.25}
    assert machine.network is not None
    assert machine.network.latency_s.tolist() == pytest.approx([12e-3, 6e-3, 3e-3, 3e-3])
    assert own.best.program.startswith("def kernel(A, B, matmul):") and not own.best.missing
    assert any("fma" in line for line in own.best.assembly), own.best.assembly


def test_the_page_says_it_all(
    tmp_path: Path, task: SearchTask, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = log(tmp_path / "log", task), tmp_path / "page.html"
    assert main(["report", str(path), "-o", str(output)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{output}: 1 tasks, 5 trials\n" and "line 6: torn last line" in said.err
    text = output.read_text(encoding="utf-8")
    page = Reader(text)
    for expected in ("GMM:0 batch 1", "1.000 ms", "4.2", "2.1 %", "run timeout", "20 %", "4.5 s"):
        assert expected in page.text, expected
    assert "def kernel(A, B, matmul):" in page.text and "vfmadd" in page.text
    assert "line 6: torn last line" in page.text and Target.detect().fingerprint in page.text
    # It stands alone and can be read by everybody.
    assert "script" not in page.tags and not re.search(r"(?:src|href)=\"(?!#)", text)
    assert "url(http" not in text and "@import" not in text
    tables = page.tags.count("table")
    assert tables == page.tags.count("caption") == 3 and page.tags.count("th") > 12
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert any("1.000 ms after 5 trials" in (label or "") for label in labels)
    ids = [value for name, value in page.attributes if name == "id"]
    own = [i for i in ids if i and re.fullmatch(r"m1(t\d+)?", i)]
    assert len(set(own)) == len(own) == 2
    assert "prefers-color-scheme: dark" in text and 'lang="en"' in text


def test_the_page_shows_profiles(
    tmp_path: Path, task: SearchTask, capsys: pytest.CaptureFixture[str]
) -> None:
    peak = Peak(1e12, 5e11, 1e10)
    row = KernelTime(EVIL, ("n",), 1, 2e-3, None, 1e-3, "l2", 1e6, Moved(1, 2, 3), 1, 2, 1e-4, 0.0)
    none = np.zeros((0, 3), np.int64)
    times = 3e-3, 2.5e-3, 2e-3, 2.6e-3, 2.7e-3, 1.0
    made = Profile("net", "cpu", 2, 3, (row,), *times, peak, none, none)
    file, output = tmp_path / "profile.json", tmp_path / "page.html"
    path = log(tmp_path / "log", task)
    command = ["report", str(path), "-o", str(output), "--profile", str(file)]
    own = made.as_dict()
    for content, titles in (
        (own, ["Profile"]),
        ({"N=1": own, "N=2": own}, ["Profile of size N=1", "Profile of size N=2"]),
    ):
        file.write_text(json.dumps(content))
        assert main(command) == 0
        text = Reader(output.read_text(encoding="utf-8")).text
        assert all(title in text for title in titles)
        assert "net: 1 kernel, 2 threads, 3 rounds on cpu" in text and "2.000 ms" in text
    for wrong in ("", "[]", "3", '{"kernels": [{}]}', '{"a": 1}'):
        file.write_text(wrong)
        capsys.readouterr()
        assert main(command) == 2
        assert "is no profile" in capsys.readouterr().err


def test_names_are_text(tmp_path: Path, task: SearchTask) -> None:
    known = Page((EVIL,), EVIL, (), (EVIL,))
    with RecordLog(log(tmp_path / "log", task, EVIL)) as file:
        contents = file.contents
    for page in (known, Page(("x",), "", gather(contents))):
        text = html(page)
        read = Reader(text)
        assert "script" not in read.tags and "img" not in read.tags
        assert not any(name.startswith("on") for name, _ in read.attributes)
        assert (
            "{{ 7*7 }} \\x1b[2J\\ud800" in read.text and "49" not in read.text.split("7*7")[0][-9:]
        )
        text.encode("utf-8")


def test_what_cannot_be_rebuilt_is_said(tmp_path: Path, task: SearchTask) -> None:
    odd = record(task, steps=({"step": "spill"},))
    foreign = record(task, target="other-8c-00000000")
    unknown = replace(record(task), task="0123456789abcdef0123")
    bad = record(task, 1, status="RUN_ERROR", latency_s=None)
    bad = replace(bad, task="fedcba98765432100123")
    contents = LogContents((odd, foreign, unknown, bad), ())
    here, there = gather(contents, (), {task.workload_key: task})
    why = [t.best.missing for t in here.tasks]
    assert "does not fit: its steps are those of no sketch of the task" in why[0]
    assert why[1:] == ["its task is not known: name the network"] * 2
    assert there.target is None and there.tasks[0].best.missing.startswith(
        "it was made for other-8c"
    )
    text = Reader(html(Page(("log",), "", (here, there)))).text
    assert text.count("No program is shown") == 4 and "another machine than this one" in text
    assert "hold no record" in Reader(html(Page(("log",), "", ()))).text


def test_several_logs_are_one(tmp_path: Path, task: SearchTask) -> None:
    one, other = log(tmp_path / "one", task), tmp_path / "other"
    write(other, [record(task, 9, latency_s=5e-4, timestamp=1.8e9)])
    again = shutil.copy(one, tmp_path / "again")
    output = tmp_path / "page.html"
    assert main(["report", str(one), str(other), str(again), "-o", str(output)]) == 0
    text = Reader(output.read_text(encoding="utf-8")).text
    assert "500.0 us" in text and "6" in text


@pytest.mark.parametrize("module", ["jinja2", "matplotlib"])
def test_without_the_extra(
    tmp_path: Path, task: SearchTask, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    from ansorlite.report import curves

    curves._pyplot.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with RecordLog(log(tmp_path / "log", task)) as file:
        found = gather(file.contents)
    with pytest.raises(MissingExtra, match=r"ansorlite\[report\]"):
        html(Page(("log",), "", found))
    curves._pyplot.cache_clear()


def test_wrong_use(tmp_path: Path, task: SearchTask, capsys: pytest.CaptureFixture[str]) -> None:
    path = log(tmp_path / "log", task)
    for arguments, text in (
        (["-o", str(path)], "the command uses that file for something else"),
        (["--batch", "2", "-o", str(tmp_path / "x")], "name it with --network"),
        (["--network", "resnet19", "-o", str(tmp_path / "x")], "no network 'resnet19'"),
    ):
        assert main(["report", str(path), *arguments]) == 2
        assert text in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none"), "-o", str(tmp_path / "x")]) == 2


def test_the_hot_loop_is_the_innermost_one_with_most_arithmetic() -> None:
    text = """\
.LBB0_1:
\tmovl\t$0, %eax
.LBB0_2:
\t.p2align\t4
\tvfmadd231ps\t%zmm0, %zmm1, %zmm2
\tvfmadd231ps\t%zmm0, %zmm1, %zmm3
\tjne\t.LBB0_2
\tjl\t.LBB0_1
.LBB0_3:
\tincq\t%rax
\tincq\t%rax
\tincq\t%rax
\tincq\t%rax
\tjb\t.LBB0_3
\tretq
"""
    loop = hot_loop(text)
    assert loop[0] == ".LBB0_2:" and loop[-1].split() == ["jne", ".LBB0_2"] and len(loop) == 4
    assert hot_loop("kernel:\n\tretq\n\tjmp\t.LBB0_9\n.LBB0_9:\n") == ()
    arm = ".LBB0_1:\n\tfmla\tv0.4s, v1.4s, v2.4s\n\tsubs\tx0, x0, #1\n\tb.ne\t.LBB0_1\n"
    assert len(hot_loop(arm)) == 4
    long = ".LBB0_1:\n" + "\tnop\n" * 1000 + "\tjne\t.LBB0_1\n"
    assert len(hot_loop(long)) == 161 and "842 lines" in hot_loop(long)[80]


# ---- in a browser -------------------------------------------------------------------------------


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")
def test_a_browser_shows_it(tmp_path: Path, task: SearchTask) -> None:
    """At 400 and 1280 pixels nothing sticks out, names are text, the curves are there."""
    with RecordLog(log(tmp_path / "log", task, EVIL[:-1])) as file:
        text = html(Page(("log",), "", gather(file.contents, [WeightedTask(task, 2.0)])))
    frames = "".join(
        f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{markup.escape(text)}">'
        "</iframe>"
        for width in (400, 1280)
    )
    script = """
      onload = () => { document.getElementById("told").textContent = "told " +
        [...document.querySelectorAll("iframe")].map(f => {
          const d = f.contentDocument, e = d.documentElement;
          return [f.clientWidth, e.scrollWidth - e.clientWidth, d.querySelectorAll("svg").length,
            d.querySelectorAll("script, img").length,
            d.querySelector("figure svg").getBoundingClientRect().height > 99].join(" ");
        }).join(", ") + "." }"""
    shown = tmp_path / "frames.html"
    shown.write_text(f'{frames}<p id="told"></p><script>{script}</script>', encoding="utf-8")
    run = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", shown.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    told = re.search(r">told ([^<]*)\.<", run.stdout)
    assert told is not None, run.stderr[-2000:]
    assert told.group(1) == "400 0 4 0 true, 1280 0 4 0 true"
