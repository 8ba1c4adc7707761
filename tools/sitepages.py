"""MkDocs hook that makes a page read the same on the site as in the repository.

Links may point anywhere in the repository: files outside docs/ are added to the site under
`repository/`. Lists and tables may follow a paragraph without a blank line. Comments, which are for
the tests, are removed.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = "repository"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_FENCE = re.compile(r" *(`{3,}|~{3,})")
_COMMENT = re.compile(r" *<!--.*--> *")
_LIST = re.compile(r"([-*+]|\d+\.) ")


@dataclass
class _Site:
    """Files added in this build."""

    origins: dict[str, str] = field(default_factory=dict)
    """Page name on the site → file in the repository."""


_SITE = _Site()


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add files outside docs/ that pages link to, directly or indirectly."""
    _SITE.origins.clear()
    waiting = []
    for page in files.documentation_pages():
        origin = f"docs/{page.src_uri}"
        _SITE.origins[page.src_uri] = origin
        waiting.append((origin, page.content_string))
    while waiting:
        origin, text = waiting.pop()
        for link in _links(text):
            target = resolve(origin, link)
            name = place(target)
            if not name.startswith(f"{OUTSIDE}/") or files.get_file_from_path(name) is not None:
                continue
            if (found := _take_in(name, target, config)) is None:
                continue  # mkdocs reports it
            files.append(found)
            if found.is_documentation_page():
                _SITE.origins[name] = name.removeprefix(f"{OUTSIDE}/")
                waiting.append((_SITE.origins[name], found.content_string))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_others: object) -> str:
    """Turn links to the repository into links to the site."""
    name = page.file.src_uri
    origin = _SITE.origins[name]

    def lead(match: re.Match[str]) -> str:
        target = place(resolve(origin, match[1]))
        return posixpath.relpath(target, posixpath.dirname(name) or ".") + (match[2] or "")

    lines = _lines(space(without_comments(markdown)))
    return "\n".join(line if fenced else _LINK.sub(lead, line) for line, fenced in lines)


def resolve(origin: str, link: str) -> str:
    """Return the file in the repository that a link in `origin` points to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))


def place(target: str) -> str:
    """Return the path on the site of a file in the repository."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if (ROOT / target).is_dir():
        readme = (ROOT / target / "README.md").is_file()
        return f"{OUTSIDE}/{target}/{'README' if readme else 'index'}.md"
    return f"{OUTSIDE}/{target}"


def without_comments(markdown: str) -> str:
    """Remove comments on lines of their own: before a heading they would hide it."""
    lines = _lines(markdown)
    return "\n".join(line for line, fenced in lines if fenced or not _COMMENT.fullmatch(line))


def space(markdown: str) -> str:
    """Insert a blank line before each list and table that follows a paragraph."""
    found: list[str] = []
    before = ""
    for line, fenced in _lines(markdown):
        lists, tables = _LIST.match(line), line.startswith("|")
        goes_on = before.startswith((" ", "|")) if tables else before.startswith(" ")
        if not fenced and before and not goes_on:
            begins = (lists and not _LIST.match(before)) or tables
            found += [""] if begins else []
        found.append(line)
        before = line
    return "\n".join(found)


def _take_in(name: str, target: str, config: MkDocsConfig) -> File | None:
    """Return a file of the repository as a file of the site."""
    path = ROOT / target
    if path.is_dir() and name.endswith("/index.md"):
        entries = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        listing = "\n".join(f"- [{entry}]({entry})" for entry in entries)
        content = f"# {target}\n\n{listing}\n"
        return _generated(config, name, content=content)
    if path.is_dir():
        path /= "README.md"
    if not path.is_file() or ROOT not in path.resolve().parents:
        return None
    return _generated(config, name, abs_src_path=os.fspath(path))


def _generated(config: MkDocsConfig, name: str, **source: str) -> File:
    return File.generated(config, name, inclusion=InclusionLevel.NOT_IN_NAV, **source)


def _links(markdown: str) -> Iterator[str]:
    for line, fenced in _lines(markdown):
        if not fenced:
            yield from (match[1] for match in _LINK.finditer(line))


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """Return each line, and whether it is part of a code block."""
    fence = ""
    for line in markdown.split("\n"):
        match = _FENCE.match(line)
        if fence:
            yield line, True
            if match and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        else:
            fence = match[1] if match else ""
            yield line, bool(match)
