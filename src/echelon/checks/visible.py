"""Text of others on a terminal: a script, a node or a file's name may hold what steers one."""


def visible(text: str) -> str:
    """Return a text in one line, with whatever does not print in its escaped form."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
