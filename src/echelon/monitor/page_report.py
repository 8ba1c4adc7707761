"""The report as a self-contained HTML page. Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape

from echelon.core.units import render_time
from echelon.monitor.charts import bars, curve
from echelon.monitor.report import Report, describe_training, failures, no_findings
from echelon.monitor.state import AttemptState
from echelon.run.rank_time import PRODUCTIVE

_POINTS = 400
_MOST_CURVES = 6
_MOST_RANKS = 64
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #667080; --back: #fff; --line: #dde2e8;
  --good: #1a7f4b; --bar: #b7791f; --curve: #2563c9; --bad: #c0362c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --faint: #99a3b0; --back: #14171b;
  --line: #313842; --good: #4cc38a; --bar: #e3b341; --curve: #6ea8fe; --bad: #ff7b72; } }
body { margin: 2rem auto; max-width: 46rem; padding: 0 1rem; background: var(--back);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid var(--line); }
svg { width: 100%; height: auto; font-size: 13px; fill: var(--ink); }
.bar { fill: var(--bar); } .good { fill: var(--good); }
.line { fill: none; stroke: var(--curve); stroke-width: 2; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th, .faint { color: var(--faint); font-weight: normal; }
.bad { color: var(--bad); }
code { overflow-wrap: anywhere; }
"""


def render_page(report: Report, *, now_s: float) -> str:
    """Return the page; all text from the run is escaped."""
    body = "\n".join(_sections(report, now_s))
    title = escape(f"{report.state.run_id}: {report.state.phase}")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _sections(report: Report, now_s: float) -> Iterator[str]:
    state, accounts = report.state, report.accounts
    yield f"<h1>{escape(state.run_id)}: {escape(state.phase)}</h1>"
    yield f'<p class="faint">as of {_moment(now_s)}</p>'
    if state.code:
        yield f"<p>Code: <code>{escape(state.code)}</code></p>"
    if accounts.allocated_us:
        yield f"<p>{escape(describe_training(report))}.</p>"
    yield from _advice(report)
    spent = [(name, s) for name, s in accounts.seconds.items() if name != "queue" and s > 0]
    if spent:
        yield "<h2>Where the time went</h2>"
        unit = " GPU s" if accounts.gpus else " rank s"
        yield bars(sorted(spent, key=lambda one: -one[1]), unit=unit, good=PRODUCTIVE)
    yield from _ranks(report)
    for name, points in sorted(state.metrics.items(), key=_loss_first)[:_MOST_CURVES]:
        yield f"<h2>{escape(name)}</h2>"
        every = max(1, len(points) // _POINTS)
        yield curve([(float(step), value) for step, value in points[::every]])
    yield from _attempts(report)


def _loss_first(item: tuple[str, list[tuple[int, float]]]) -> tuple[bool, str]:
    return item[0] != "loss", item[0]


def _advice(report: Report) -> Iterator[str]:
    yield "<h2>Suggestions</h2>"
    if not report.findings:
        yield f"<p>{no_findings(report).capitalize()}.</p>"
        return
    yield "<ul>"
    for one in report.findings:
        yield f"<li>{escape(one.seen)}.<br>{escape(one.change)}</li>"
    yield "</ul>"


def _ranks(report: Report) -> Iterator[str]:
    ranks = report.facts.ranks
    used = [(f"rank {one.rank}", 100 * one.gpu_util) for one in ranks if one.gpu_util is not None]
    if used:
        yield "<h2>GPU utilisation by rank</h2>"
        yield bars(used[:_MOST_RANKS], unit=" %", most=100)
    if waits := [one for one in ranks if one.data or one.comm]:
        yield "<h2>Waiting times of ranks</h2>"
        yield "<table><tr><th>rank</th><th>node</th><th>data</th><th>other ranks</th></tr>"
        for one in waits[:_MOST_RANKS]:
            cells = (str(one.rank), one.node, f"{one.data:.0%}", f"{one.comm:.0%}")
            yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        yield "</table>"
    if len(ranks) > _MOST_RANKS:
        yield f'<p class="faint">Showing {_MOST_RANKS} of {len(ranks)} ranks.</p>'


def _attempts(report: Report) -> Iterator[str]:
    jobs = list(report.state.attempts.values())
    if not jobs:
        return
    yield "<h2>Jobs</h2>"
    heads = ("attempt", "job", "started", "duration", "outcome")
    yield f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
    for job in jobs:
        cells = (str(job.number), job.job_id, _moment(job.began_s), _lasted(job), job.outcome)
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"
    if wrong := failures(report.state):
        yield "<h2>Failures</h2><ul>"
        yield from (f'<li class="bad">{escape(text)}</li>' for text in wrong)
        yield "</ul>"


def _lasted(job: AttemptState) -> str:
    return render_time(job.ended_s - job.began_s) if job.ended_s is not None else ""


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at_s else ""
