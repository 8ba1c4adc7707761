import pytest

from echelon.errors import UsageError
from echelon.launch.container.reference import parse_reference

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "shown", "pulled"),
    [
        ("python", "docker.io/library/python:latest", "docker.io/library/python:latest"),
        ("pytorch/pytorch:2.6", "docker.io/pytorch/pytorch:2.6", "docker.io/pytorch/pytorch:2.6"),
        ("docker://a.b/c/d:1", "a.b/c/d:1", "a.b/c/d:1"),
        ("127.0.0.1:5000/x", "127.0.0.1:5000/x:latest", "127.0.0.1:5000/x:latest"),
        ("localhost/mine:2", "localhost/mine:2", "localhost/mine:2"),
        (f"a.b/c:1@{DIGEST}", f"a.b/c:1@{DIGEST}", f"a.b/c@{DIGEST}"),
        (f"a.b/c@{DIGEST}", f"a.b/c@{DIGEST}", f"a.b/c@{DIGEST}"),
    ],
)
def test_names_of_images(text, shown, pulled):
    found = parse_reference(text)
    assert (str(found), found.pulled, found.path) == (shown, pulled, "")
    assert parse_reference(str(found)) == found


@pytest.mark.parametrize("text", ["/images/a.sif", "a.sif", "./b.tar", "../c.sif", "~/d.sif"])
def test_files(text):
    assert parse_reference(text).path == text
    assert str(parse_reference(text)) == text


@pytest.mark.parametrize("text", ["", "A B", "UPPER/case", "a.b/c:", "x@sha256:12", "a//b", "-x"])
def test_what_is_not_an_image(text):
    with pytest.raises(UsageError) as raised:
        parse_reference(text)
    assert raised.value.hint


def test_only_registries_on_this_machine_do_without_tls():
    plain = [parse_reference(f"{host}/x").plain_http for host in ("127.0.0.1:5000", "localhost:1")]
    assert plain == [True, True]
    assert not parse_reference("127.0.0.1.example.org/x").plain_http
    assert not parse_reference("ghcr.io/x").plain_http


def test_an_image_of_podmans_own_storage():
    assert parse_reference("localhost/x").local
    assert not parse_reference("localhost:5000/x").local


def test_each_digest_has_one_file():
    one, other = parse_reference(f"a.b/c:1@{DIGEST}"), parse_reference(f"a.b/c:2@{DIGEST}")
    assert one.stem == other.stem == DIGEST.replace(":", "-")
    assert parse_reference("a.b/c:1").stem != parse_reference("a.b/c:2").stem
