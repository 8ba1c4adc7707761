"""`echelon lint`: find problems in a job script before it is submitted."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echelon.cli import console
from echelon.cli.completion import complete_rule, offer
from echelon.cli.help import CHECK
from echelon.client.submit.config_file import read_project, take_table
from echelon.core.proc import count_cpus
from echelon.core.shell import LocalShell, Result
from echelon.errors import MissingProgramError, NotPermittedError, UsageError

if TYPE_CHECKING:
    from echelon.core.shell import Shell
    from echelon.lint.choosing import Choice
    from echelon.lint.files import Files
    from echelon.lint.rule import Finding

app = typer.Typer(rich_markup_mode=None)
FORMATS = ("text", "json", "sarif", "github")
SEVERITIES = ("error", "warning", "advice")
_GROUP = 25
"""Scripts that one process lints at a time; neighbours often start the same Python script."""
_MOST_PASSES = 10
"""A fix can make another one possible."""


def _option(*names: str, **given: Any) -> Any:
    return typer.Option(*names, show_default=False, **given)


@app.command(rich_help_panel=CHECK)
def lint(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE…",
            help="Job scripts, Python scripts, directories or patterns; - for stdin.",
            show_default=False,
        ),
    ] = None,
    *,
    explain: Annotated[
        str,
        _option(
            metavar="CODE",
            help="Explain a rule; 'all' lists every rule.",
            autocompletion=complete_rule,
        ),
    ] = "",
    fix: Annotated[bool, _option("--fix", help="Apply the certain fixes.")] = False,
    diff: Annotated[
        bool, _option("--diff", help="Show the certain fixes, but apply none.")
    ] = False,
    select: Annotated[
        list[str] | None,
        _option(metavar="CODES", help="Report only these rules, such as E1,E301."),
    ] = None,
    ignore: Annotated[
        list[str] | None, _option(metavar="CODES", help="Do not report these rules.")
    ] = None,
    severity: Annotated[
        str,
        _option(
            metavar="LEVEL",
            help="Report this severity or higher: error, warning (default) or advice.",
            autocompletion=offer(SEVERITIES),
        ),
    ] = "",
    strict: Annotated[bool, _option("--strict", help="Exit with 1 on warnings, too.")] = False,
    baseline: Annotated[
        str, _option(metavar="FILE", help="Do not report the findings in this file.")
    ] = "",
    write_baseline: Annotated[
        str, _option(metavar="FILE", help="Write all findings to a baseline file.")
    ] = "",
    config: Annotated[
        Path | None, _option(metavar="FILE", help="Read [lint] from this project file.")
    ] = None,
    output_format: Annotated[
        str,
        _option(
            metavar="FORMAT",
            help="Output text, json, sarif or github.",
            autocompletion=offer(FORMATS),
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Output JSON.")] = False,
) -> None:
    """Find problems in job scripts and the Python that they start.

    Lint reads the scripts but does not run them. It exits with 1 if it finds an error. To ignore a
    finding, add the comment `# echelon: ignore CODE`.

    Example: echelon lint job.sh
    """
    from echelon.lint.choosing import drop_known, read_choice, render_baseline  # noqa: PLC0415
    from echelon.lint.gathering import list_scripts  # noqa: PLC0415

    if explain:
        _explain(explain)
        return
    shown = _choose_format(output_format, as_json=as_json)
    if not files:
        raise UsageError("no file given", hint="echelon lint SCRIPT.sh")
    table, source = _read_table(config)
    flags: dict[str, Any] = {"select": select, "ignore": ignore, "severity": severity}
    flags |= {"strict": strict, "baseline": baseline}
    choice = read_choice(table, flags, source=source)
    # A path in the project file is relative to that file.
    known = baseline or (
        os.path.relpath(Path(source).parent / choice.baseline) if choice.baseline else ""
    )
    paths = list_scripts(files)
    scripts = [_Script(path) for path in paths if len(paths) == 1 or not _is_empty(path)]
    if diff or fix:
        _fix(scripts, choice, save=not diff)
    found = list(dict.fromkeys(_lint_all(scripts)))  # two jobs can start the same Python script
    found = [one for one in found if choice.keeps(one)]
    if write_baseline:
        name = _named_from(write_baseline)
        Path(write_baseline).write_text(render_baseline(found, _read_line, name))
        console.note(f"wrote {write_baseline}; use it with: --baseline {write_baseline}")
        return
    if known:
        try:
            found = drop_known(found, _read(known), _read_line, _named_from(known))
        except UsageError as error:
            raise UsageError(f"{known}: {error.message}", hint=error.hint) from error
    _print(found, shown, len(scripts))
    if choice.fails(found):
        raise typer.Exit(1)


def _lint_all(scripts: "list[_Script]") -> "list[Finding]":
    """Return the findings of all scripts; many are shared among the CPUs."""
    groups = [scripts[at : at + _GROUP] for at in range(0, len(scripts), _GROUP)]
    processes = min(len(groups) // 2, count_cpus())
    if processes < 2:
        return [one for group in groups for one in _lint_group(group)]
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415

    with ProcessPoolExecutor(processes) as pool:
        return [one for found in pool.map(_lint_group, groups) for one in found]


def _lint_group(scripts: "list[_Script]") -> "list[Finding]":
    from echelon.lint.files import DiskFiles  # noqa: PLC0415

    files, programs = DiskFiles(), _Programs()  # shared, so that each file is parsed once
    return [one for script in scripts for one in script.lint(files, programs)]


class _Programs(LocalShell):
    """Asks for the version of Slurm once, not for each script."""

    def __init__(self) -> None:
        super().__init__()
        self._slurm: Result | MissingProgramError | None = None

    def run(self, argv: Sequence[str], **options: Any) -> Result:
        if list(argv) != ["sinfo", "--version"]:
            return super().run(argv, **options)
        if self._slurm is None:
            try:
                self._slurm = super().run(argv, **options)
            except MissingProgramError as error:
                self._slurm = error
        if isinstance(self._slurm, MissingProgramError):
            raise self._slurm
        return self._slurm


def _choose_format(name: str, *, as_json: bool) -> str:
    shown = name or ("json" if as_json else "text")
    if shown not in FORMATS:
        raise UsageError(
            f"invalid value for --output-format: '{shown}' (choose {', '.join(FORMATS)})",
            hint="--output-format sarif",
        )
    return shown


def _fix(scripts: "list[_Script]", choice: "Choice", *, save: bool) -> None:
    """Apply the safe fixes, or print them and exit."""
    changed = [script for script in scripts if script.fix(choice)]
    for script in changed if save else ():
        script.save()
    if not save:
        if changed:
            console.print_file("".join(script.diff() for script in changed))
        raise typer.Exit(1 if changed else 0)


class _Script:
    """A script on the command line, and its text with fixes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._before = self._text = _read(path)

    def lint(self, files: "Files", programs: "Shell") -> "list[Finding]":
        from echelon.lint.linting import lint as lint_text  # noqa: PLC0415

        return lint_text(self._text, path=self._path, files=files, programs=programs)

    def fix(self, choice: "Choice") -> bool:
        """Apply all safe fixes to the text, and tell whether that changed it."""
        from echelon.lint.edits import apply_edits  # noqa: PLC0415
        from echelon.lint.files import DiskFiles  # noqa: PLC0415

        files, programs = DiskFiles(), LocalShell()
        for _ in range(_MOST_PASSES):
            all_found = self.lint(files, programs)
            found = (one for one in all_found if one.path == self._path and choice.keeps(one))
            text = apply_edits(self._text, [edit for one in found for edit in one.edits])
            if text == self._text:
                break
            self._text = text
        return self._text != self._before

    def diff(self) -> str:
        import difflib  # noqa: PLC0415

        before, after = (t.splitlines(keepends=True) for t in (self._before, self._text))
        changes = difflib.unified_diff(before, after, self._path, self._path)
        ended = (
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in changes
        )
        return "".join(ended)

    def save(self) -> None:
        if self._path == "-":
            raise UsageError("--fix cannot change stdin", hint="echelon lint --diff -")
        with Path(self._path).open("w", encoding="utf-8", newline="") as file:
            file.write(self._text)
        console.note(f"fixed {self._path}")


def _print(found: "list[Finding]", shown: str, files: int) -> None:
    if shown == "text":
        from echelon.lint.report import render_findings  # noqa: PLC0415

        console.print_result(render_findings(found, files))
        return
    from echelon.lint import formats  # noqa: PLC0415
    from echelon.lint.linting import RULES  # noqa: PLC0415

    if shown == "json":
        console.print_json(formats.render_json(found))
    elif shown == "sarif":
        console.print_json(formats.render_sarif(found, RULES))
    elif found:
        console.print_result(formats.render_github(found))


def _read_table(config: Path | None) -> tuple[dict[str, Any], str]:
    """Return the table [lint] of the project file and the path of the file."""
    try:
        layer = read_project(Path.cwd(), os.environ, console.note, named=config)
    except NotPermittedError as error:  # the files of a container often belong to another user
        console.note(f"warning: ignored [lint]: {error.message}")
        return {}, ""
    return dict(take_table(dict(layer.values), "lint", header="lint")), layer.source


def _named_from(baseline: str) -> Callable[[str], str]:
    """Return how a baseline names scripts: relative to itself, wherever lint is called."""
    folder = Path(baseline).parent
    return lambda path: path if path == "-" else os.path.relpath(path, folder)


def _read_line(path: str, number: int) -> str:
    lines = Path(path).read_text(errors="replace").split("\n") if path != "-" else []
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _is_empty(path: str) -> bool:
    """Tell whether one of several files is empty, and mention it."""
    if path == "-" or not Path(path).is_file() or Path(path).stat().st_size:
        return False
    console.note(f"warning: {path} is empty")
    return True


def _read(path: str) -> str:
    """Return the text of a script.

    Raises:
        UsageError: the file does not exist, or is not a text file.
    """
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        text = content.decode()
    except FileNotFoundError as error:
        raise UsageError(f"file not found: {path}", hint="check the path") from error
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
    from echelon.lint.codes import REMOVED  # noqa: PLC0415
    from echelon.lint.linting import RULES, find_rule  # noqa: PLC0415
    from echelon.lint.report import render_rule  # noqa: PLC0415

    if code.lower() == "all":
        rows = [[rule.code, str(rule.severity), rule.title] for rule in RULES]
        console.print_table(["code", "severity", "problem"], rows)
        return
    rule = find_rule(code)
    if rule is None and code.upper() in REMOVED:
        raise UsageError(
            f"the rule {code.upper()} was removed",
            hint="list all rules: echelon lint --explain all",
        )
    if rule is None:
        raise UsageError(f"unknown rule: {code}", hint="list all rules: echelon lint --explain all")
    console.print_result(render_rule(rule))
