"""`echelon lint`: what will go wrong with a job script, before it is queued."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli import console
from echelon.cli.completion import complete_rule
from echelon.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from echelon.checks.lint.finding import Finding

app = typer.Typer(rich_markup_mode=None)


@app.command()
def lint(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE…", help="Job scripts, Python scripts.", show_default=False),
    ] = None,
    *,
    explain: Annotated[
        str,
        typer.Option(
            metavar="CODE",
            help="Say what a rule is about.",
            show_default=False,
            autocompletion=complete_rule,
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs to read.")] = False,
) -> None:
    """Say what will go wrong with job scripts and their Python.

    No script is run. Ends with 1 when there is an error or a warning; a comment
    `# echelon: ignore CODE` silences one.

    Example: echelon lint job.sh
    """
    try:
        from echelon.checks.lint import finding, report  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("tree_sitter"):
            raise
        raise UnavailableError(
            "reading bash scripts needs tree-sitter, which is not installed",
            hint="pip install 'echelon[lint]'",
        ) from error

    if explain:
        _explain(explain)
        return
    if not files:
        raise UsageError("no file is named", hint="echelon lint job.sh")
    found = [one for path in files for one in _lint(path)]
    found = list(dict.fromkeys(found))  # two scripts may start the same Python
    if as_json:
        console.print_json([one.to_json() for one in found])
    else:
        console.print_result(report.render_findings(found, len(files)))
    if any(one.severity is not finding.Severity.ADVICE for one in found):
        raise typer.Exit(1)


def _lint(path: Path) -> "list[Finding]":
    from echelon.checks.lint.files import DiskFiles  # noqa: PLC0415
    from echelon.checks.lint.linting import lint as lint_text  # noqa: PLC0415

    return lint_text(_read(path), path=str(path), files=DiskFiles())


def _read(path: Path) -> str:
    """Return a script's text.

    Raises:
        UsageError: there is none, or it is no text.
    """
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}", hint="name a job script") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a folder", hint=f"name scripts in it: {path}/*.sh") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no text in UTF-8: byte {error.start + 1} is {error.object[error.start]:#x}",
            hint=f"if it is a script in another encoding: iconv -f latin1 -t utf-8 {path}",
        ) from error
    if "\0" in text:
        raise UsageError(f"{path} is no script: it has zero bytes in it", hint="name a job script")
    if not text.strip():
        raise UsageError(f"{path} is empty", hint="name a job script")
    return text


def _explain(code: str) -> None:
    from echelon.checks.lint.report import render_rule  # noqa: PLC0415
    from echelon.checks.lint.table import RULES, find_rule  # noqa: PLC0415

    if code.lower() == "all":
        rows = [[rule.code, str(rule.severity), rule.title] for rule in RULES]
        console.print_table(["code", "severity", "about"], rows)
        return
    rule = find_rule(code)
    if rule is None:
        raise UsageError(f"there is no rule {code}", hint="echelon lint --explain all lists them")
    console.print_result(render_rule(rule))
