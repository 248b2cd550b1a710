"""How names are written into each medium: names of tensors, nodes, networks and tasks are data.

In: any str (quotes, newlines, `*/`, backslashes, zero bytes, lone surrogates, 10 kB). Out: text for
people, a C string literal, text inside of a C comment, XML text, a part of a file name. Errors, the
tables, dumps, pictures and generated C all use these functions, so that no name is ever read as
code, as markup, as a path or as a command to a terminal.
"""

import re
from html import escape

PART = 64  # bytes of a name on one line of generated C
IN_LITERAL = frozenset(b" !#$%&'()+,-./:;<=>@[]^_`{|}~") | frozenset(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


def shown(text: str, most: int | None = None, keep: str = "") -> str:
    """`text` with what a terminal does not print as an escape sequence of Python.

    That is control characters, marks of direction and lone surrogates, but those in `keep`. What is
    longer than `most` characters loses its middle.
    """
    if not text.isprintable():
        text = "".join(c if c in keep or c.isprintable() else _escaped(c) for c in text)
    if most is None or len(text) <= most:
        return text
    head = max(0, most - 3) * 2 // 3
    tail = max(0, most - 3) - head
    return f"{text[:head]}...{text[len(text) - tail :]}"


def brief(name: str) -> str:
    """A name in a message: `shown`, of at most 80 characters."""
    return shown(name, 80)


def first_line(error: BaseException) -> str:
    """What an exception says, in one line of bounded length; its kind where it says nothing."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return shown(lines[0].strip() if lines else type(error).__name__, 300)


def c_string(text: str) -> str:
    """A C string literal whose bytes are the UTF-8 form of `text`, on several lines if long.

    Everything but plain ASCII is an octal escape of three digits, and so are quotes, backslashes,
    asterisks and question marks: no trigraph, no comment, no escape that runs on into the next
    character.
    """
    data = text.encode("utf-8", "surrogatepass")
    parts = [data[k : k + PART] for k in range(0, len(data), PART)] or [b""]
    return "\n    ".join(
        '"' + "".join(chr(b) if b in IN_LITERAL else f"\\{b:03o}" for b in part) + '"'
        for part in parts
    )


def c_comment(text: str, most: int = 200) -> str:
    """`text` as it may stand in a C comment: ASCII without asterisks, and no longer than `most`."""
    plain = "".join(c if c.isascii() and c not in "*?\\" else _escaped(c) for c in text)
    return shown(plain, most)


def xml_text(text: str, most: int | None = None) -> str:
    """`text` as the content of an XML element or attribute."""
    return escape(shown(text, most))


def file_part(text: str, most: int = 80) -> str:
    """A part of a file name: ASCII letters, digits and `_.+-`, at most `most` of them."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text)[:most]


def _escaped(c: str) -> str:
    return c.encode("unicode_escape").decode("ascii") if c not in "*?" else f"\\x{ord(c):02x}"
