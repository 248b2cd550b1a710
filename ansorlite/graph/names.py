"""Names of a model in messages: one line of text, whatever the file holds.

In: a name as the file has it. Out: the same name where it is short and printable; otherwise control
characters are escaped and the middle of a long name is left out, with its length.
"""

MOST_CHARACTERS = 80  # of a name that is shown whole
HEAD, TAIL = 50, 20  # characters that are left of a longer one


def shown(name: str) -> str:
    """`name` for a message."""
    if len(name) > MOST_CHARACTERS:
        return f"{_escaped(name[:HEAD])}...{_escaped(name[-TAIL:])} ({len(name)} characters)"
    return _escaped(name)


def first_line(error: BaseException) -> str:
    """What an exception says, in one line of bounded length; its kind where it says nothing."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[0].strip() if lines else type(error).__name__
    return _escaped(text[:300]) + "..." * (len(text) > 300)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
