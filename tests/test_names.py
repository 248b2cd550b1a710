"""Names as data: escaping of quotes, commands and empty names in every medium."""

import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ansorlite.errors import AnsorliteError, MissingExtra, ModelError
from ansorlite.names import c_comment, c_string, file_part, shown, xml_text

NAMES = [
    "",
    "plain.name/1:0",
    "a\"b'c",
    "a\nb\r\t\0",
    "a*/b/*c",
    "\\",
    "\\n\\x41",
    "??/??'??)",
    "0\0001",
    "é 日本 \U0001f600",
    "\u202eright to left\u2028",
    "\x1b]0;title\x07\x9b31m",
    "\ud800",
    "x" * 10_000,
    "".join(map(chr, range(256))),
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_every_name_in_every_medium(name: str) -> None:
    assert shown(name).isprintable() and shown(shown(name)) == shown(name)
    assert len(shown(name, 50)) <= 50
    literal = c_string(name)
    assert literal.isascii() and "*" not in literal and "?" not in literal
    assert all(line.count('"') == 2 for line in literal.split("\n"))
    comment = c_comment(name)
    assert comment.isascii() and "\n" not in comment and "*" not in comment and len(comment) <= 200
    text = xml_text(name)
    assert ET.fromstring(f'<a b="{text}">{text}</a>').text == (shown(name) or None)
    part = file_part(name)
    assert len(part) <= 80 and not set(part) & set("/\\\0\n \"'")


def test_escapes_of_shown() -> None:
    assert shown("conv/日本 1") == "conv/日本 1"
    assert shown("a\nb\x1b[0m\ud800") == "a\\nb\\x1b[0m\\ud800"
    assert shown("a\nb\t\x07", keep="\n\t") == "a\nb\t\\x07"
    assert shown("a" * 50 + "b" * 50, 13) == "aaaaaa...bbbb"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_bytes_of_literals_are_those_of_the_names(tmp_path: Path) -> None:
    rows = [f"  {{{c_string(n)}, sizeof {c_string(n)} - 1}}," for n in NAMES]
    comments = [f"/* {c_comment(n)} */" for n in NAMES]
    source = [
        *comments,
        "#include <stdio.h>",
        "static const struct { const char *at; size_t n; } names[] = {",
        *rows,
        "};",
        f"int main(void) {{ for (int k = 0; k < {len(NAMES)}; k++)",
        "fwrite(names[k].at, 1, names[k].n, stdout);",
        "return 0; }",
    ]
    (tmp_path / "names.c").write_text("\n".join(source))
    command = ["cc", "-trigraphs", "-Wall", "-Werror", "names.c", "-o", "names"]
    subprocess.run(command, cwd=tmp_path, check=True)
    written = subprocess.run([tmp_path / "names"], check=True, stdout=subprocess.PIPE).stdout
    assert written == "".join(NAMES).encode("utf-8", "surrogatepass")


def test_errors_are_one_line_that_a_terminal_can_print() -> None:
    for kind in (AnsorliteError, ModelError):
        error = kind("node a\n\x1b[31mb reads\n  it")
        assert str(error) == "node a \\x1b[31mb reads it"
        assert error.args == ("node a\n\x1b[31mb reads\n  it",)
    assert str(AnsorliteError()) == ""
    assert str(MissingExtra("onnx", "onnx")).startswith("onnx is not installed")
