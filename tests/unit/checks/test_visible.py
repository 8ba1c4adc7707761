"""What others write cannot steer the terminal of whoever reads it."""

from echelon.checks.doctor import render_findings as render_doctors
from echelon.checks.lint.finding import Finding, Severity
from echelon.checks.lint.report import render_findings
from echelon.checks.visible import visible
from echelon.launch.doctor.record import Finding as DoctorsFinding

EVIL = "1\x1b]0;title\x07\r\n"


def test_what_prints_stays_and_the_rest_is_shown():
    assert visible("16Go é …") == "16Go é …"
    assert visible(EVIL) == r"1\x1b]0;title\x07\r\n"


def test_neither_command_passes_it_on():
    lint = Finding(code="E111", path=EVIL, line=1, severity=Severity.ERROR, what=EVIL, fix=EVIL)
    doctors = DoctorsFinding(severity="error", node="n1", check="reach", message=EVIL, fix="-")
    for text in (render_findings([lint], 1), render_doctors([doctors])):
        assert all(one.isprintable() for one in text.replace("\n", ""))
    assert len(render_findings([lint], 1).splitlines()) == 3
