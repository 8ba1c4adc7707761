"""Parsing the options of sbatch and srun."""

import shlex

import pytest

from echelon.clusters.slurm.options import (
    SBATCH,
    SRUN,
    directive_lines,
    parse_options,
    parse_sbatch,
    split_directive,
    split_gpus,
)
from echelon.errors import UsageError


def parse(line, table=SRUN):
    words = shlex.split(line)
    given, end = parse_options(words, table)
    return [(option.name, option.value) for option in given], words[end:]


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("--nodes=2", [("nodes", "2")]),
        ("--nodes 2", [("nodes", "2")]),
        ("-N2", [("nodes", "2")]),
        ("-N 2", [("nodes", "2")]),
        ("--comment=a=b", [("comment", "a=b")]),
        ("--job-name=", [("job-name", "")]),
        ("--job-name=''", [("job-name", "")]),
        ("--job-name='a b'", [("job-name", "a b")]),
        ("-J 'a b'", [("job-name", "a b")]),
        ("-J --nodes=2", [("job-name", "--nodes=2")]),
        ("-N", [("nodes", "")]),
        ("--tasks-per-node=4", [("ntasks-per-node", "4")]),
        ("--part=gpu", [("partition", "gpu")]),
        ("--nod=2", [("nod", "2")]),
    ],
)
@pytest.mark.parametrize("table", [SBATCH, SRUN])
def test_an_option_value_is_in_the_same_word_or_the_next(line, options, table):
    assert parse(line, table) == (options, [])


@pytest.mark.parametrize(
    ("line", "options", "rest"),
    [
        ("-lu prog", [("label", ""), ("unbuffered", "")], ["prog"]),
        ("-lun4 prog", [("label", ""), ("unbuffered", ""), ("ntasks", "4")], ["prog"]),
        ("-K prog", [("kill-on-bad-exit", "")], ["prog"]),
        ("-K1 prog", [("kill-on-bad-exit", "1")], ["prog"]),
        ("--exclusive prog", [("exclusive", "")], ["prog"]),
        ("--exclusive=user prog", [("exclusive", "user")], ["prog"]),
        ("-W 30 prog", [("wait", "30")], ["prog"]),
        ("--cpu_bind=none prog", [("cpu-bind", "none")], ["prog"]),
        ("-n 2 prog -n 9", [("ntasks", "2")], ["prog", "-n", "9"]),
        ("-n 2 -- -prog", [("ntasks", "2")], ["-prog"]),
        ("-n 2 - x", [("ntasks", "2")], ["-", "x"]),
    ],
)
def test_options_of_srun_end_at_the_command(line, options, rest):
    assert parse(line) == (options, rest)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("--new=a --nodes=2", [("new", "a"), ("nodes", "2")]),
        ("--new a", [("new", "a")]),
        ("--new --nodes=2", [("new", ""), ("nodes", "2")]),
        ("-y3 -N2", [("-y3", "3"), ("nodes", "2")]),
    ],
)
def test_unknown_slurm_options_are_kept(line, options):
    assert parse(line) == (options, [])


def test_wait_takes_no_value_for_sbatch():
    assert parse("-W -N2", SBATCH) == ([("wait", ""), ("nodes", "2")], [])


def test_the_position_of_an_option_value_is_recorded():
    given, end = parse_options(["-l", "-n", "4", "--mem=1G", "prog"], SRUN)
    assert [option.at for option in given] == [0, 2, 3]
    assert end == 4


def test_the_last_of_repeated_options_applies():
    assert list(parse_sbatch(["-N2", "-pgpu", "--nodes=3"]).items()) == [
        ("partition", "gpu"),
        ("nodes", "3"),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpu"], "'gpu' is not an sbatch option"),
        (["-gres=gpu:1"], "'-gres=gpu:1' is not an sbatch option"),
        (["-Hy"], "'-y' is not an sbatch option"),
        (["--", "gpu"], "'gpu' is not an sbatch option"),
        (["--mem-per=1G"], "--mem-per is ambiguous: --mem-per-cpu, --mem-per-gpu"),
    ],
)
def test_sbatch_directives_accept_only_options(words, message):
    with pytest.raises(UsageError) as caught:
        parse_sbatch(words)
    assert caught.value.message == message


def test_directives_end_at_the_first_command():
    script = (
        "#!/bin/bash\n#SBATCH -N2\n\n# SBATCH -n1\n #SBATCH -n1\n#SBATCH -t1\ntrue\n#SBATCH -n1"
    )
    assert list(directive_lines(script)) == [(2, " -N2"), (6, " -t1")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (' --comment="a b" -N2', ["--comment=a b", "-N2"]),
        (""" --comment='a "b"'""", ['--comment=a "b"']),
        (r' --comment="a \"b\""', ['--comment=a "b"']),
        (r" --comment='a\b'", [r"--comment=a\b"]),
        (r" a\ b\#c", ["a b#c"]),
        (' ""', [""]),
        (" -N2 # -n4", ["-N2"]),
        (" -ab#c -n4", ["-ab"]),
        ("  'a#b'", ["a#b"]),
        ("\t-N2\r", ["-N2"]),
        ("", []),
    ],
)
def test_directives_are_unquoted_as_slurm_does(line, words):
    assert split_directive(line, 1) == words


def test_an_open_quote_is_reported_with_its_line():
    with pytest.raises(UsageError, match="line 7: the quote ' is not closed"):
        split_directive(" --comment='a", 7)


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("4", "", "4"),
        ("a100", "a100", "1"),
        ("a100:4", "a100", "4"),
        ("1g.5gb:2", "1g.5gb", "2"),
        ("a100:4(S:0-1)", "a100", "4"),
    ],
)
def test_gpus_have_a_type_and_a_number(text, kind, amount):
    assert split_gpus(text) == (kind, amount)
