"""The entries of the keys are consistent, because all other facts are derived from them."""

from collections.abc import Mapping

import pytest

from echelon.core.frozen import frozen
from echelon.spec import readers
from echelon.spec.job_spec import KEYS, JobSpec
from echelon.spec.keys import EVERYDAY, ROLE, RUN, SECTIONS, collect_keys, key

EVERY_KEY = pytest.mark.parametrize("one", KEYS.values(), ids=list(KEYS))


@EVERY_KEY
def test_the_entry_of_a_key_has_known_values(one):
    assert one.section in SECTIONS
    assert one.scope in (RUN, ROLE)
    assert set(one.unused) <= {"style", "ray", "local"}
    assert one.default == one.value(JobSpec())
    assert not one.in_extra or one.sbatch


@EVERY_KEY
def test_the_flag_of_a_key_matches_its_reader(one):
    assert bool(one.metavar) or one.read.__name__ == "switch"
    assert one.is_repeated or not one.is_table
    assert one.help[-1] not in ".:,"


@pytest.mark.parametrize("forms", ["option", "sbatch", "parameter"])
def test_keys_have_distinct_names(forms):
    names = [getattr(one, forms) for one in KEYS.values() if not one.is_argument]
    given = [name for name in names if name]
    assert len(set(given)) == len(given)


@frozen
class Sample:
    count: int = key("--count N", "how many", EVERYDAY, readers.count, 0)
    table_of_texts: Mapping[str, str] = key(
        "--text NAME=VALUE ...", "texts", EVERYDAY, readers.table, {}, name="texts.all"
    )
    module: bool = key("--module -m", "a switch", EVERYDAY, readers.switch, False, scope=ROLE)
    stage: bool = key("--stage/--no-stage", "another", EVERYDAY, readers.switch, False)
    words: tuple[str, ...] = key("WORDS ...", "the others", EVERYDAY, readers.words, ())


SAMPLE = collect_keys(Sample)


@pytest.mark.parametrize(
    ("name", "parameter", "spellings", "metavar", "is_repeated"),
    [
        ("count", "count", ["--count"], "N", False),
        ("texts.all", "texts_all", ["--text"], "NAME=VALUE", True),
        ("module", "module", ["--module", "-m"], "", False),
        ("stage", "stage", ["--stage/--no-stage"], "", False),
        ("words", "words", [], "WORDS", True),
    ],
)
def test_a_flag_is_parsed_from_its_help_form(name, parameter, spellings, metavar, is_repeated):
    one = SAMPLE[name]
    assert (one.parameter, one.spellings) == (parameter, spellings)
    assert (one.metavar, one.is_repeated) == (metavar, is_repeated)
    assert one.is_argument == (not spellings)
    assert one.is_argument or one.option == spellings[0].partition("/")[0]


def test_a_key_returns_and_shows_its_value():
    sample = Sample(table_of_texts={"a": "1", "b": "2"}, words=("x", "y"))
    assert [name for name, one in SAMPLE.items() if one.is_set(sample)] == ["texts.all", "words"]
    assert SAMPLE["texts.all"].show(sample) == "a=1, b=2"
    assert SAMPLE["words"].show(sample) == "x,y"
    assert SAMPLE["count"].show(Sample(count=4)) == "4"
    assert not SAMPLE["count"].show(sample)
    assert SAMPLE["stage"].show(sample) == "false"
    assert [name for name, one in SAMPLE.items() if one.scope == ROLE] == ["module"]
    assert [name for name, one in SAMPLE.items() if one.is_table] == ["texts.all"]


def test_a_key_with_an_unknown_field_is_an_error():
    @frozen
    class Misspelt:
        count: int = key("--count N", "how many", EVERYDAY, readers.count, 0, ranks=1)

    with pytest.raises(TypeError, match="ranks"):
        collect_keys(Misspelt)
