"""Escaping of names: names of tensors, nodes, networks and tasks are data and may hold anything.

In: any str (quotes, newlines, `*/`, backslashes, zero bytes, lone surrogates, 10 kB). Out: text for
people, a C string literal, text inside a C comment, XML text, or a part of a file name. Errors,
tables, dumps, pictures and generated C use these functions, so that no name is interpreted as code,
markup, a path or a terminal command.
"""

import re
from html import escape

PART = 64  # bytes of a string literal on one line of generated C
IN_LITERAL = frozenset(b" !#$%&'()+,-./:;<=>@[]^_`{|}~") | frozenset(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


def shown(text: str, most: int | None = None, keep: str = "") -> str:
    """`text` with Python escape sequences in place of characters that a terminal does not print.

    These are control characters, marks of text direction and lone surrogates; characters in `keep`
    stay. A text longer than `most` characters loses its middle.
    """
    if not text.isprintable():
        text = "".join(c if c in keep or c.isprintable() else _escaped(c) for c in text)
    if most is None or len(text) <= most:
        return text
    head = max(0, most - 3) * 2 // 3
    tail = max(0, most - 3) - head
    return f"{text[:head]}...{text[len(text) - tail :]}"


def brief(name: str) -> str:
    """A name for a message: `shown`, at most 80 characters."""
    return shown(name, 80)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, at most 300 characters; its type without one."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return shown(lines[0].strip() if lines else type(error).__name__, 300)


def c_string(text: str) -> str:
    """A C string literal whose bytes are the UTF-8 form of `text`; several lines if long.

    Quotes, backslashes, asterisks, question marks and all bytes outside printable ASCII become
    octal escapes of three digits. The literal therefore contains no trigraph and no end of a
    comment, and no escape extends into the next character.
    """
    data = text.encode("utf-8", "surrogatepass")
    parts = [data[k : k + PART] for k in range(0, len(data), PART)] or [b""]
    return "\n    ".join(
        '"' + "".join(chr(b) if b in IN_LITERAL else f"\\{b:03o}" for b in part) + '"'
        for part in parts
    )


def c_comment(text: str, most: int = 200) -> str:
    """`text` for a C comment: ASCII without `*`, `?` and backslash; at most `most` characters."""
    plain = "".join(c if c.isascii() and c not in "*?\\" else _escaped(c) for c in text)
    return shown(plain, most)


def xml_text(text: str, most: int | None = None) -> str:
    """`text` as the content of an XML element or attribute."""
    return escape(shown(text, most))


def file_part(text: str, most: int = 80) -> str:
    """`text` as part of a file name: ASCII letters, digits and `_.+-`, at most `most` characters.

    A run of other characters becomes one underscore.
    """
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text)[:most]


def _escaped(c: str) -> str:
    return c.encode("unicode_escape").decode("ascii") if c not in "*?" else f"\\x{ord(c):02x}"
