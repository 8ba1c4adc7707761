"""The real TensorBoard reads what we write."""

import pytest

from echelon.train.tensorboard import ScalarWriter, frame


@pytest.fixture
def read(tmp_path):
    from tensorboard.backend.event_processing import event_accumulator as loader

    def scalars(tag):
        found = loader.EventAccumulator(str(tmp_path), purge_orphaned_data=True)
        found.Reload()
        return [(e.step, e.wall_time, e.value) for e in found.Scalars(tag)]

    return scalars


def test_tensorboard_reads_what_we_write(tmp_path, read):
    writer = ScalarWriter(tmp_path, now_s=1000.5)
    first = (1001.25, 1, {"train/loss": 0.25, "ünï": -3.0})
    writer.write([first, (1002.0, 300, {"train/loss": float("nan")})])
    writer.write([(1003.0, 2**40, {"train/loss": 1e30})])
    writer.close()
    first, second, third = read("train/loss")
    assert first == (1, 1001.25, 0.25)
    assert second[0] == 300
    assert second[2] != second[2]
    assert third[0] == 2**40
    assert third[2] == pytest.approx(1e30)
    assert read("ünï") == [(1, 1001.25, -3.0)]


def test_a_record_has_its_checksums():
    """CRC-32C of `123456789` is known to be e3069283; TFRecord rotates it and adds a number."""
    record = frame(b"123456789")
    crc = 0xE3069283
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert record[-4:] == masked.to_bytes(4, "little")
    assert record[:8] == (9).to_bytes(8, "little")
