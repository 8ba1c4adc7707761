import contextlib
import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.launch.protocol.wire import WireError
from echelon.launch.stage import transfer
from echelon.launch.stage.copying import Copy, StalledError, read_all
from echelon.launch.stage.manifest import describe_folder
from echelon.launch.stage.store import CHUNK, StageStore
from echelon.launch.stage.transfer import decode_ranges, encode_ranges, fetch, serve, stage_key

KEY = stage_key(b"k" * 32)


@pytest.fixture
def original(tmp_path):
    root = tmp_path / "venv"
    root.mkdir()
    for number in range(40):
        (root / f"small-{number}").write_bytes(os.urandom(number * 100))
    (root / "large").write_bytes(os.urandom(5 * CHUNK + 7))
    (root / "link").symlink_to("large")
    return root


class Node:
    """One that has a disk and serves others."""

    def __init__(self, folder):
        self.store = StageStore(folder, 1 << 30)
        self.store.prepare()
        self.copy = None
        self.failed = None
        self.served = 0
        """Connections that were accepted."""
        self._here = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.place = self._server.getsockname()
        self._peers, self._threads = [], [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def open(self, manifest):
        if self.copy is None:
            self.copy = Copy(self.store.find(manifest.digest) or self.store.create(manifest))
            self._here.set()
        return self.copy

    def _accept(self):
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            self.served += 1
            self._peers.append(peer)
            thread = threading.Thread(target=self._serve, args=(peer,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer):
        with peer:
            try:
                serve(peer, KEY, self._find)
            except (OSError, WireError) as error:
                self.failed = error

    def _find(self, timeout_s):
        return self.copy if self._here.wait(min(timeout_s, 0.05)) else None

    def die(self):
        """Hang up, as a node that is lost."""
        for one in (self._server, *self._peers):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._server.close()
        if self.copy:
            self.copy.fail("dead")
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def make(tmp_path):
    made = []

    def build():
        made.append(Node(tmp_path / f"node{len(made)}"))
        return made[-1]

    yield build
    for node in made:
        node.die()
        if node.copy:
            node.copy.close()
            node.copy.stage.close()


def read(node, original):
    manifest = describe_folder(original)
    read_all(original, node.open(manifest), lambda: None)


def get(node, source):
    return fetch(source.place, KEY, node.open, lambda: None)


def assert_whole(node, original):
    node.store.keep(node.copy.stage)
    assert describe_folder(node.copy.stage.tree).digest == describe_folder(original).digest
    for path in original.iterdir():
        assert (node.copy.stage.tree / path.name).read_bytes() == path.read_bytes()


def test_a_copy_passes_through_a_chain_while_it_is_read(make, original):
    first, second, third = make(), make(), make()
    threads = [
        threading.Thread(target=get, args=(third, second)),
        threading.Thread(target=get, args=(second, first)),
        threading.Thread(target=read, args=(first, original)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for node in (first, second, third):
        assert_whole(node, original)


def test_bytes_go_on_before_a_file_is_complete(make, original):
    first, second = make(), make()
    manifest = describe_folder(original)
    large = next(i for i, one in enumerate(manifest.entries) if one.path == "large")
    for node in (first, second):
        node.open(manifest)._done = set(manifest.files) - {large}
    first.copy.begin(large)
    first.copy.add(large, (original / "large").read_bytes()[:CHUNK])
    came, add = threading.Event(), second.copy.add

    def tell(position, data):
        add(position, data)
        if second.copy.copied == CHUNK:
            came.set()

    second.copy.add = tell

    def lose():
        with pytest.raises(OSError, match=r".*"):
            get(second, first)

    fetching = threading.Thread(target=lose)
    fetching.start()
    assert came.wait(20)
    first.die()
    fetching.join(20)
    assert not fetching.is_alive()


def test_the_rest_comes_from_another_node(make, original, monkeypatch):
    first, second, third = make(), make(), make()
    read(first, original)
    read(second, original)
    add, limit = Copy.add, 2 * CHUNK

    def die_in_between(copy, position, data):
        add(copy, position, data)
        if copy is third.copy and copy.copied > limit:
            monkeypatch.setattr(Copy, "add", add)
            raise ConnectionResetError("gone")

    monkeypatch.setattr(Copy, "add", die_in_between)
    with pytest.raises(ConnectionResetError):
        get(third, first)
    first.die()
    lacking = third.copy.lacking
    assert any(lacking.values()), "one file is there in part"
    get(third, second)
    assert third.copy.copied == describe_folder(original).size, "nothing came twice"
    assert_whole(third, original)


def test_a_node_that_was_below_reads_the_rest_itself(make, original, monkeypatch):
    first, second = make(), make()
    read(first, original)
    add = Copy.add

    def die_in_between(copy, position, data):
        add(copy, position, data)
        if copy is second.copy and copy.copied > 2 * CHUNK:
            monkeypatch.setattr(Copy, "add", add)
            raise ConnectionResetError("gone")

    monkeypatch.setattr(Copy, "add", die_in_between)
    with pytest.raises(ConnectionResetError):
        get(second, first)
    read_all(original, second.copy, lambda: None)
    assert second.copy.copied == describe_folder(original).size
    assert_whole(second, original)


def test_a_node_that_has_it_receives_nothing(make, original):
    first, second = make(), make()
    read(first, original)
    get(second, first)
    before = second.copy.copied
    get(second, first)
    assert second.copy.copied == before


def test_only_damaged_files_are_asked_for(make, original):
    first, second = make(), make()
    read(first, original)
    get(second, first)
    second.store.keep(second.copy.stage)
    second.copy.stage.close()
    os.truncate(second.copy.stage.tree / "small-7", 1)
    second.copy = None
    get(second, first)
    assert second.copy.copied == 700
    assert_whole(second, original)


def test_a_file_that_changes_while_it_is_copied_fails(make, original):
    first = make()
    manifest = describe_folder(original)
    (original / "small-3").write_bytes(b"something else entirely")
    with pytest.raises(StalledError, match=r"small-3 was changed while it was copied"):
        read_all(original, first.open(manifest), lambda: None)


def test_a_full_disk_names_the_folder(make, original, monkeypatch):
    first = make()

    def full(_handle, _data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer.os, "write", full)
    with pytest.raises(StalledError, match=r"cannot write to .*node0: No space left") as raised:
        read(first, original)
    monkeypatch.undo()
    assert raised.value.hint


def test_those_below_are_told_that_there_will_be_no_copy(make, original):
    first, second = make(), make()
    first.open(describe_folder(original)).fail("the disk is full")
    with pytest.raises(ConnectionAbortedError, match="the disk is full"):
        get(second, first)


def test_damaged_content_is_not_accepted(make, original):
    first, second = make(), make()
    read(first, original)
    digests = first.copy.stage.digests
    digests[min(digests)] = "ab" * 32
    with pytest.raises(StalledError, match="arrived damaged"):
        get(second, first)


def test_a_stranger_gets_nothing(make, original):
    first, second = make(), make()
    read(first, original)
    with pytest.raises((WireError, OSError)):
        fetch(first.place, stage_key(b"x" * 32), second.open, lambda: None)
    assert second.copy is None


def test_the_key_is_not_that_of_the_controller():
    assert stage_key(b"k" * 32) != b"k" * 32


@pytest.mark.parametrize(
    "said", [b"7", b"{}", b'{"files": [[0, 10]]}', b"\xff", b'{"files": 1, "begun": {}}']
)
def test_nonsense_from_a_node_is_answered(make, original, said):
    first = make()
    read(first, original)
    with socket.create_connection(first.place) as peer:
        pipe = transfer._Pipe(peer, KEY, "agent")
        while pipe.receive() != (b"m", b""):
            pass
        pipe.send(b"w", said)
        assert pipe.receive()[0] == b"e"


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_the_same_numbers(numbers):
    assert decode_ranges(encode_ranges(sorted(numbers)), 61) == sorted(numbers)


@pytest.mark.parametrize("ranges", [[[-2, 1]], [["a", 1]], 7, [[0, 1], [0, 1], [0, 1]]])
def test_ranges_of_something_else_are_refused(ranges):
    with pytest.raises(ValueError, match="ranges"):
        decode_ranges(ranges, 3)
