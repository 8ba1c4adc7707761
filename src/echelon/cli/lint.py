"""`echelon lint`: find problems in a job script before it is submitted."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli import console
from echelon.cli.completion import complete_rule
from echelon.cli.help import CHECK
from echelon.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from echelon.lint.rule import Finding

app = typer.Typer(rich_markup_mode=None)


@app.command(rich_help_panel=CHECK)
def lint(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE…", help="Job scripts or Python scripts.", show_default=False),
    ] = None,
    *,
    explain: Annotated[
        str,
        typer.Option(
            metavar="CODE",
            help="Explain a rule; 'all' lists every rule.",
            show_default=False,
            autocompletion=complete_rule,
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Output JSON.")] = False,
) -> None:
    """Find problems in job scripts and the Python scripts they start.

    Lint reads the scripts but does not run them. It exits with 1 if it finds an error or a
    warning. To ignore a finding, add the comment `# echelon: ignore CODE`.

    Example: echelon lint job.sh
    """
    try:
        from echelon.lint import report, rule  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("tree_sitter"):
            raise
        raise UnavailableError(
            "echelon lint requires tree-sitter, which is not installed",
            hint="pip install 'echelon[lint]'",
        ) from error

    if explain:
        _explain(explain)
        return
    if not files:
        raise UsageError("no file given", hint="echelon lint SCRIPT.sh")
    found = [one for path in files for one in _lint(path)]
    found = list(dict.fromkeys(found))  # two job scripts can start the same Python script
    if as_json:
        console.print_json([asdict(one) for one in found])
    else:
        console.print_result(report.render_findings(found, len(files)))
    if any(one.severity is not rule.Severity.ADVICE for one in found):
        raise typer.Exit(1)


def _lint(path: Path) -> "list[Finding]":
    from echelon.lint.files import DiskFiles  # noqa: PLC0415
    from echelon.lint.linting import lint as lint_text  # noqa: PLC0415

    return lint_text(_read(path), path=str(path), files=DiskFiles())


def _read(path: Path) -> str:
    """Return the text of a script.

    Raises:
        UsageError: the file does not exist, or is not a text file.
    """
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError as error:
        raise UsageError(f"file not found: {path}", hint="check the path") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a directory", hint=f"echelon lint {path}/*.sh") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not valid UTF-8: byte {error.start + 1} is {error.object[error.start]:#x}",
            hint=f"to convert it from Latin-1: iconv -f latin1 -t utf-8 {path}",
        ) from error
    if "\0" in text:
        raise UsageError(
            f"{path} is not a script: it contains null bytes", hint="pass a job script"
        )
    if not text.strip():
        raise UsageError(f"{path} is empty", hint="pass a job script")
    return text


def _explain(code: str) -> None:
    from echelon.lint.linting import RULES, find_rule  # noqa: PLC0415
    from echelon.lint.report import render_rule  # noqa: PLC0415

    if code.lower() == "all":
        rows = [[rule.code, str(rule.severity), rule.title] for rule in RULES]
        console.print_table(["code", "severity", "problem"], rows)
        return
    rule = find_rule(code)
    if rule is None:
        raise UsageError(f"unknown rule: {code}", hint="list all rules: echelon lint --explain all")
    console.print_result(render_rule(rule))
