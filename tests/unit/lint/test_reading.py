"""What bash would make of a script."""

import re

import pytest

from echelon.lint.bash import Where, Word, calculate
from echelon.lint.reading import read_shell


def read(text, **more):
    return read_shell(text, path="job.sh", where=Where.BATCH, **more)


def words(text, **more):
    return [word.text for word in read(text, **more).commands[-1].words]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1; x $a", ["x", "1"]),
        ('a="b c"; x $a "$a"', ["x", "b", "c", "b c"]),
        ('a="b \\\n  c\n"; x $a', ["x", "b", "c"]),
        ("x 'a $b'", ["x", "a $b"]),
        ('x "a \\$b"', ["x", "a $b"]),
        ("x a\\ b", ["x", "a b"]),
        ('x "a\\nb"', ["x", "a\\nb"]),
        ("x --n=4\\\n    --m=2", ["x", "--n=4", "--m=2"]),
        ("n=2; x $((n * 4 + 1))", ["x", "9"]),
        ("n=2; x ${n:-7} ${m:-7}", ["x", "2", "${m:-7}"]),
        ("a=(1 '2 3'); x ${a[@]}", ["x", "1", "2 3"]),
        ('set -- p q; x $1 "$@"', ["x", "p", "p", "q"]),
        ("t=$(cat <<'E'\na $b\nE\n); x \"$t\"", ["x", "a $b"]),
        ("x a.$B.${C:-0}", ["x", "a.${B}.${C:-0}"]),
        ("if true; then a=1; fi; x $a", ["x", "${a}"]),
        ("for a in 1 2; do x $a; done", ["x", "${a}"]),
    ],
)
def test_words_come_to_what_bash_makes_of_them(text, expected):
    assert words(text) == expected


def test_what_a_value_was_made_of_is_known_through_variables():
    shell = read("port=$((10000 + SLURM_JOB_ID % 1000))\nexport MASTER_PORT=$port\n")
    assert shell.exported == {"MASTER_PORT"}
    assert "SLURM_JOB_ID" in shell.assignments[-1].value.names


def test_a_line_of_assignments_is_no_part_of_the_next_command():
    shell = read("A=1 B=2\nrun\nC=3 run\n")
    assert [a.name for a in shell.assignments] == ["A", "B"]
    assert [[a.name for a in c.assignments] for c in shell.commands] == [[], ["C"]]


def test_background_pipes_and_heredocs():
    shell = read("a | b &\nc <<E\nhello $USER\nE\ncat <<'E' > f.sh\n$x\nE\n")
    assert [(c.name, c.background, c.piped_into) for c in shell.commands[:2]] == [
        ("a", True, ("b",)),
        ("b", True, ()),
    ]
    assert shell.commands[2].stdin.names == {"USER"}
    assert shell.written["f.sh"].text == "$x\n"


def test_lines_are_those_of_the_file():
    shell = read("a\nb \\\n  c\n\nd $(e)\n", first_line=10)
    assert [(c.name, c.line) for c in shell.commands] == [
        ("a", 10),
        ("b", 11),
        ("e", 14),
        ("d", 14),
    ]


def test_known_values_are_used():
    assert words("x $N", values={"N": Word(text="4", line=0)}) == ["x", "4"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2 * 3 + 1", 7), ("7 / 2", 3), ("10 % 4", 2), ("1 / 0", None), ("x + 1", None),
     ("9 ** 99999", None), ("", None), ("1" * 300, None)],
)  # fmt: skip
def test_arithmetic(expression, value):
    assert calculate(expression) == value


def test_a_long_script_is_read_to_its_end():
    text = "".join(f"run{number} $((number + {number}))\n" for number in range(3000))
    shell = read(f"{text}last # comment\n")
    assert (shell.commands[-1].name, shell.commands[-1].line) == ("last", 3001)
    assert shell.comments == ((3001, "# comment", 5),)


def test_letters_of_all_kinds_stay_what_they_are():
    shell = read('# größe 😀\nname="é 𐀀"; run "$name" 中.py\n')
    assert [word.text for word in shell.commands[-1].words] == ["run", "é 𐀀", "中.py"]
    assert shell.comments[0][1] == "# größe 😀"


@pytest.mark.parametrize(
    "word",
    [
        "$A-$B.out",
        "$A/$B/c.d",
        "$D/a-$B.$C.e",
        '"$A".$B-x',
        "${A}.$B.$C-$D/e",
        "`d`-$B.o",
        "$(d):$B.o",
        "$A-$B.é",
        "$A-$B",
        "$A-${B}.o",
    ],
)
def test_a_word_of_several_variables_is_one_word(word):
    def braced(text):
        return re.sub(r"\$(\w+)", r"${\1}", text.replace('"', ""))

    shell = read_shell(f"X={word}\necho {word}\n", path="a.sh", where=Where.BATCH)
    assert [braced(assignment.value.text) for assignment in shell.assignments] == [braced(word)]
    assert [braced(c.text) for c in shell.commands if c.name != "d"] == [f"echo {braced(word)}"]


def test_arithmetic_keeps_its_operators():
    shell = read_shell("A=9\nB=2\nX=$(($A-$B-1))\n", path="a.sh", where=Where.BATCH)
    assert shell.assignments[-1].value.text == "6"
