"""Which pages there are."""

from pathlib import Path

from docs.page import Page, parse_page

ROOT = Path(__file__).parents[2]


def page_names() -> list[str]:
    """Return every page of the documentation, by its path in the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]
    found += sorted((ROOT / "docs").rglob("*.md"))
    return [str(path.relative_to(ROOT)) for path in found]


def read_page(name: str) -> Page:
    return parse_page(name, (ROOT / name).read_text())
