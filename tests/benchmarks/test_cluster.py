"""The parts of the cluster benchmark that are no measurement, against figures that are easy to check by hand."""

import pytest
from tests.helpers.photo_files import draw

from benchmarks.cluster import plan, random_bank, write_photos
from vcc_infuse import Timm
from vcc_infuse.bank.sharding import frozen_network
from vcc_infuse.data.images.store import Limits
from vcc_infuse.data.sources.remote import list_pieces, read_piece


def test_the_plan_is_arithmetic():
    """A core second per image and 64 machines of 32 cores; a shard of Ray costs nothing more than one here."""
    row = {"photo": (9, 9), "side": 96, "whole_seconds": 0.0736, "bytes_per_photo": 1e4, "bytes_per_row": 2500.0}
    using = {"index_bytes_per_shard": 300.0, "checksum_seconds": 0.0, "predict_seconds": 3.6e-5, "select_seconds": 0.0}
    found = plan(row, using, {"here": 0.2, "ray": 0.1})
    assert found["core_hours"] == pytest.approx(2044.4, rel=1e-3)  # 10⁸ · 0.0736 / 3600
    assert (found["machines_for_one_hour"], found["hours_on_one_machine"]) == (64, pytest.approx(63.9, rel=1e-3))
    assert (found["read_terabytes"], found["features_gigabytes"]) == (1.0, 250.0)
    assert found["features_megabytes_per_second"] == pytest.approx(250_000 / 3594, rel=1e-3)
    assert found["read_megabytes_per_second_and_machine"] == pytest.approx(1e6 / 3594 / 64, rel=1e-3)
    assert (found["index_megabytes"], found["predict_core_hours"]) == (3.0, 1.0)
    slower = plan(row, using, {"here": 0.1, "ray": 1.1})
    assert slower["core_hours"] - found["core_hours"] == pytest.approx(10_000 / 3600)


def test_photos_and_a_bank_without_any(tmp_path):
    draw(tmp_path)
    write_photos(str(tmp_path), tmp_path / "x.tar", (40, 30), 5)
    (piece,) = list_pieces(str(tmp_path / "x.tar"), images=9)
    (chunk,) = read_piece(piece, (16, 16, 3), 9, Limits(), 1)
    assert len(set(chunk.names)) == 5
    shards = random_bank(tmp_path / "bank", frozen_network(Timm("test_resnet", "none", 16)), 10, per_shard=4)
    assert [part.rows for part in shards.parts] == [4, 4, 2]
    assert len(set(shards.names)) == 10
