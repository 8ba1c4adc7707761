"""A page of the documentation as steps: what to run, what it prints, which files to write.

Pure. Comments of HTML, each on a line of its own, say what a reader need not see; CONTRIBUTING.md
has them all. What cannot be read is an error: a directive with a slip in it would be passed over
in silence.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

NEEDS = ("sandbox", "slurm", "ssh", "podman", "root", "peers", "full", "alone")
LIMIT_S = 120.0
_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w-]*) *(?P<more>.*)")
_TITLE = re.compile(r'title="([^"]+)"')
_DIRECTIVE = re.compile(r"\s*<!-- ([a-z ]+): (.*?) -->\s*")
_PLAIN = ("", "text", "bash", "sh", "shell", "console")
_OURS = re.compile(
    r"(\$ )?(sudo )?(\w+=\S+ )*(\.venv/bin/)?(echelon|make|python -m echelon|pip install)( |$)"
)


class PageError(Exception):
    """Something on a page that is not as it should be; the text begins with where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line after `$ `, with those that continue it, and what it is to print."""

    line: int
    """Where it begins, counted from 1."""
    text: str
    expected: tuple[str, ...]
    first: int
    """Where the expected output begins: an index into the page's lines."""
    indent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """A block of commands."""

    line: int
    commands: tuple[Command, ...]
    exit_code: int = 0
    """Of the last command; those before it end with 0."""
    limit_s: float = LIMIT_S
    """For each command."""
    compared: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A block with a title: a file in the page's folder."""

    line: int
    name: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A piece of code that is not run; where it is of a file, the file has to have it."""

    line: int
    language: str
    content: str
    excerpt_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A command that readers do not see: what happens elsewhere, or has to be waited for."""

    line: int
    text: str
    limit_s: float = LIMIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRun:
    line: int
    reason: str
    content: str


Step = Console | WrittenFile | Snippet | Unseen | NotRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    name: str
    """Its path in the repository."""
    lines: tuple[str, ...]
    needs: frozenset[str]
    steps: tuple[Step, ...]

    @property
    def runs(self) -> bool:
        return any(isinstance(step, Console | Unseen) for step in self.steps)


def parse_page(name: str, text: str) -> Page:
    """Read a page.

    Raises:
        PageError: with everything that cannot be read.
    """
    reader = _Reader(name, text.split("\n"))
    reader.read()
    if reader.problems:
        raise PageError("\n".join(reader.problems))
    return Page(
        name=name,
        lines=tuple(reader.lines),
        needs=frozenset(reader.needs),
        steps=tuple(reader.steps),
    )


@dataclass(kw_only=True)
class _Block:
    """What lies between two fences."""

    start: int
    """The index of its first line."""
    indent: str
    language: str
    title: str
    lines: list[str] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


class _Reader:
    def __init__(self, name: str, lines: list[str]) -> None:
        self.name, self.lines = name, lines
        self.needs: set[str] = set()
        self.steps: list[Step] = []
        self.problems: list[str] = []
        self._said: dict[str, tuple[int, str]] = {}
        """Directives that wait for their block."""

    def read(self) -> None:
        for line, found in self._parts():
            if isinstance(found, _Block):
                self._take_block(line, found)
                self._complain_of_the_rest()
            elif found.strip() and not self._take_directive(line, found):
                self._complain_of_the_rest()
        self._complain_of_the_rest()

    def _parts(self) -> Iterator[tuple[int, str | _Block]]:
        """Return lines of text and whole blocks, each with its line's number."""
        block, fence, line = None, "", 0
        for index, text in enumerate(self.lines):
            if block is None:
                if match := _FENCE.fullmatch(text):
                    title = _TITLE.search(match["more"])
                    fence, line = match["fence"], index + 1
                    block = _Block(
                        start=index + 1,
                        indent=match["indent"],
                        language=match["language"],
                        title=title[1] if title else "",
                    )
                else:
                    yield index + 1, text
            elif text.strip().startswith(fence) and not text.strip().strip("`"):
                yield line, block
                block = None
            else:
                block.lines.append(text.removeprefix(block.indent))
        if block is not None:
            self._complain(line, "a block that does not end")

    def _take_directive(self, line: int, text: str) -> bool:
        match = _DIRECTIVE.fullmatch(text)
        if not match:
            return False
        what, value = match[1], match[2]
        if what == "needs":
            wanted = {word.strip() for word in value.split(",")}
            for word in sorted(wanted - set(NEEDS)):
                self._complain(line, f"'{word}' cannot be needed; there are: {', '.join(NEEDS)}")
            self.needs |= wanted
        elif what == "run":
            limit_s = self._number(line, "time", LIMIT_S)
            self.steps.append(Unseen(line=line, text=value, limit_s=limit_s))
        elif what in ("exit", "time", "not run", "output", "excerpt"):
            self._said[what] = (line, value)
        else:
            self._complain(line, f"there is no directive '{what}'")
        return True

    def _take_block(self, line: int, block: _Block) -> None:
        if "not run" in self._said:
            reason = self._said.pop("not run")[1]
            self.steps.append(NotRun(line=line, reason=reason, content=block.content))
        elif block.title:
            path = PurePosixPath(block.title)
            if path.is_absolute() or ".." in path.parts:
                self._complain(line, f"'{path}' is not in the page's folder")
            self.steps.append(WrittenFile(line=line, name=str(path), content=block.content))
        elif block.language == "console":
            self._take_console(line, block)
        else:
            excerpt = self._said.pop("excerpt", (0, ""))[1]
            self._complain_of_commands(block)
            self.steps.append(
                Snippet(
                    line=line, language=block.language, content=block.content, excerpt_of=excerpt
                )
            )

    def _take_console(self, line: int, block: _Block) -> None:
        commands = list(_commands(block))
        if not commands:
            self._complain(line, "a console block without a line that begins with '$ '")
        hidden = self._said.pop("output", None)
        if hidden and hidden[1] != "hidden":
            self._complain(hidden[0], "output can only be hidden")
        if hidden and any(command.expected for command in commands):
            self._complain(line, "output is shown, although it is said to be hidden")
        self.steps.append(
            Console(
                line=line,
                commands=tuple(commands),
                exit_code=int(self._number(line, "exit", 0)),
                limit_s=self._number(line, "time", LIMIT_S),
                compared=hidden is None,
            )
        )

    def _number(self, line: int, what: str, default: float) -> float:
        value = self._said.pop(what, (line, str(default)))[1]
        try:
            return float(value)
        except ValueError:
            self._complain(line, f"'{value}' is no number")
            return default

    def _complain_of_commands(self, block: _Block) -> None:
        if block.language not in _PLAIN or set("│┌└─▶") & set(block.content):  # a picture
            return
        for index, text in enumerate(block.lines):
            if _OURS.match(text.strip()):
                self._complain(
                    block.start + index + 1,
                    f"'{text.strip()}' is a command that nobody runs: make it a console block, "
                    "or say why not: <!-- not run: … -->",
                )
                return

    def _complain_of_the_rest(self) -> None:
        for what, (line, _value) in self._said.items():
            self._complain(line, f"'{what}' is said of no block that it could be about")
        self._said.clear()

    def _complain(self, line: int, problem: str) -> None:
        self.problems.append(f"{self.name}:{line}: {problem}")


def _commands(block: _Block) -> Iterator[Command]:
    index = 0
    while index < len(block.lines):
        if not block.lines[index].startswith("$ "):
            index += 1
            continue
        begin = index
        words = [block.lines[index].removeprefix("$ ")]
        while words[-1].endswith("\\") and index + 1 < len(block.lines):
            index += 1
            words.append(block.lines[index])
        index += 1
        first = index
        while index < len(block.lines) and not block.lines[index].startswith("$ "):
            index += 1
        yield Command(
            line=block.start + begin + 1,
            text="\n".join(words),
            expected=tuple(block.lines[first:index]),
            first=block.start + first,
            indent=block.indent,
        )
