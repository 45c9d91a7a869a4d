import pytest
import torch

from vcc_infuse.runs import checkpoint


def save(folder, *steps):
    for step in steps:
        checkpoint.save(folder, step, {"step": step, "w": torch.full((50,), float(step))})


def test_the_last_two_are_kept_and_the_newest_is_read(tmp_path):
    save(tmp_path, 10, 20, 30)
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["step-000000020.pt", "step-000000030.pt"]
    assert len(list(tmp_path.iterdir())) == 4
    assert checkpoint.load(tmp_path)["step"] == 30


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "harm",
    [
        flip_a_byte,
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.with_suffix(".json").unlink(),
        lambda path: path.with_suffix(".json").write_text("{"),
    ],
    ids=["flipped byte", "cut short", "no checksum", "broken checksum"],
)
def test_a_damaged_one_is_reported_and_the_previous_used(tmp_path, harm):
    save(tmp_path, 10, 20)
    harm(tmp_path / "step-000000020.pt")
    with pytest.warns(UserWarning, match=r"step-000000020\.pt is damaged"):
        state = checkpoint.load(tmp_path)
    assert state["step"] == 10
    assert torch.equal(state["w"], torch.full((50,), 10.0))


def test_none_where_there_is_nothing(tmp_path):
    assert checkpoint.load(tmp_path / "missing") is None


def test_nothing_is_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('ran')",))

    checkpoint.save(tmp_path, 1, {"step": 1, "evil": Evil()})
    with pytest.warns(UserWarning, match="not written by this library: UnpicklingError: Weights only"):
        assert checkpoint.load(tmp_path) is None
