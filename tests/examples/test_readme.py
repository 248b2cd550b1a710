"""The words at the front door hold: code blocks run, commands parse, links lead somewhere.

Python blocks of a page run one after the other, each with names of its own, in one empty folder
with a small `model.onnx`. `STAND_INS` replaces what would take minutes there: a budget, a size. A
block of text after a block of Python is what that block prints. Lines of sh blocks that call
`ansorlite` are parsed by the command line's own parser; those of `RUN` run.
"""

import ast
import contextlib
import io
import re
import runpy
import shlex
import shutil
import tomllib
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ansorlite import cli
from ansorlite.graph.onnx.table import READERS

ROOT = Path(__file__).parents[2]
FOLDERS = ("ansorlite", "results", "scripts", "tests", "workloads")
PAGES = [*sorted(ROOT.glob("*.md")), *(f for d in FOLDERS for f in sorted((ROOT / d).glob("*.md")))]
NAMES = [str(p.relative_to(ROOT)) for p in PAGES]
EXAMPLES = ROOT / "scripts" / "examples"
# Written in a README -> run here. Each has to occur in some block.
STAND_INS = (
    ("timeout=300", "n_trials=4"),
    ("n_trials=64", "n_trials=2"),
    ("(1, 3, 224, 224)", "(1, 3, 32, 32)"),
    ("(512, 512)", "(32, 32)"),
    ("reduce_axis(512", "reduce_axis(32"),
)
RUN = (
    "ansorlite show C2D:2 --stage program",
    "ansorlite show resnet50 --stage partition",
)
Block = tuple[str, str]  # language, text


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def code(page: Path, language: str) -> list[str]:
    return [text for name, text in blocks(page) if name == language]


def short(text: str) -> str:
    for written, instead in STAND_INS:
        text = text.replace(written, instead)
    return text


WITH_PYTHON = [str(p.relative_to(ROOT)) for p in PAGES if code(p, "python")]


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_python_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / name
    found = [*blocks(page), ("", "")]
    if any("onnx" in text for language, text in found if language == "python"):
        pytest.importorskip("onnx")
        made = runpy.run_path(str(EXAMPLES / "02_auto_schedule_onnx.py"))
        made["small_network"](tmp_path / "model.onnx")
    if any(".save(" in text for _, text in found) and shutil.which("cc") is None:
        pytest.skip("saving a network needs cc")
    monkeypatch.chdir(tmp_path)
    for (language, text), (after, printed) in pairwise(found):
        if language != "python" or ("import torch" in text and find_spec("torch") is None):
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(short(text), f"{page.name}: {text[:40]!r}", "exec"), {})
        if after == "text":
            assert out.getvalue().strip() == printed.strip()


def test_stand_ins_are_needed() -> None:
    text = "".join(t for p in PAGES for t in code(p, "python"))
    assert [written for written, _ in STAND_INS if written not in text] == []


def test_python_blocks_of_the_first_page_are_short() -> None:
    found = code(ROOT / "README.md", "python")
    assert len(found) == 3 and all(len(t.splitlines()) <= 8 for t in found)
    for text in found:
        assert len(ast.parse(text).body) > 1


def commands(page: Path) -> list[str]:
    """The lines of sh blocks, without comments and the paths of an environment."""
    lines = [line for text in code(page, "sh") for line in text.splitlines()]
    parts = [part for line in lines for part in line.partition("#")[0].split("&&")]
    return [part.strip().replace(".venv/bin/", "") for part in parts if part.strip()]


CALLS = sorted({c for p in PAGES for c in commands(p) if c.startswith("ansorlite ")})


@pytest.mark.parametrize("command", CALLS)
def test_commands_parse(command: str) -> None:
    args = cli._parser().parse_args(shlex.split(command)[1:])
    assert callable(args.run)


@pytest.mark.parametrize("command", RUN)
def test_cheap_commands_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command in CALLS
    assert cli.main(shlex.split(command)[1:]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 5


def test_scripts_and_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"\b(?:python|sh) (scripts/[a-z][\w/]*\.\w+)", text):
            assert (ROOT / name).is_file(), f"{page.name} names {name}"
        for extras in re.findall(r"pip install (?:-e )?'\.\[([\w,]+)\]'", text):
            assert set(extras.split(",")) <= set(project["optional-dependencies"])


SCRIPTS = sorted(f.name for f in (ROOT / "scripts").glob("*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_find_what_they_import(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ROOT / "scripts" / name
    if "import onnx" in script.read_text(encoding="utf-8"):
        pytest.importorskip("onnx")
    monkeypatch.syspath_prepend(str(script.parent))
    runpy.run_path(str(script), run_name="script")


def test_scripts_have_the_options_that_pages_name() -> None:
    shared = "".join(f.read_text("utf-8") for f in (ROOT / "scripts" / "bench").rglob("*.py"))
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\n", " ")
        for name, options in re.findall(r"python\s+scripts/([a-z]\w*\.py)([^`#]*)", text):
            known = (ROOT / "scripts" / name).read_text(encoding="utf-8") + shared
            for option in re.findall(r"(?<= )--[\w-]+", options):
                assert f'"{option}"' in known, f"{page.name}: {name} has no {option}"


def anchors(page: Path) -> set[str]:
    """What `#...` may follow a link to the page, as GitHub makes it of headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), f"{page.relative_to(ROOT)} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.relative_to(ROOT)}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_are_named_exist(page: Path) -> None:
    """Paths in backticks: from the root, or from the folder of the page."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`([\w./]+/(?:[\w.]+)?|[\w/]+\.(?:py|toml|svg|txt|jsonl))`", text)
    missing = [n for n in named if not any((base / n).exists() for base in places(page))]
    # the log of a command, a model: files that a user makes
    assert [n for n in missing if "/" in n] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_rows_of_a_table_have_the_same_cells(page: Path) -> None:
    lines = ["", *page.read_text(encoding="utf-8").splitlines()]
    bars = [len(re.findall(r"(?<!\\)\|", x)) if x.startswith("|") else 0 for x in lines]
    different = [k for k, (m, n) in enumerate(pairwise(bars), 1) if m and n and m != n]
    assert different == [], "lines of tables"


def places(page: Path) -> tuple[Path, ...]:
    return (ROOT, page.parent, ROOT / "ansorlite", ROOT / "scripts")


def test_the_first_page_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert [k for k, line in enumerate(lines, 1) if len(line) > 110] == []
    cells = [c.strip() for line in lines if line.startswith("|") for c in line.split("|")]
    assert max(map(len, cells)) <= 100


def test_the_first_page_counts_the_operators() -> None:
    pattern = r"\| (\d+) of ONNX; (\d+) of onnxruntime's own;"
    (told,) = re.findall(pattern, (ROOT / "README.md").read_text(encoding="utf-8"))
    own = sum(name.startswith("com.microsoft.") for name in READERS)
    assert (int(told[0]), int(told[1])) == (len(READERS) - own, own)


def test_the_picture_is_drawn_from_recorded_rows() -> None:
    pytest.importorskip("matplotlib")
    script = runpy.run_path(str(ROOT / "scripts" / "latency_over_time.py"), run_name="script")
    row = script["read"](ROOT / "results" / "networks.jsonl")[0]
    svg = script["picture"](row)
    text = "".join(ElementTree.fromstring(svg).itertext())
    assert "onnxruntime 24.1 ms" in text and "whole network 20.3 ms" in text
    assert "currentColor" in svg and script["INK"] not in svg and "prefers-color-scheme" in svg
