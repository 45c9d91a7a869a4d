"""Which network and which size: on made-up features where the best is known, and with real networks end to end."""

import json

import numpy as np
import pytest
import torch
import yaml

from vcc_infuse import Concat, SSLData, Timm, choose_encoder, train
from vcc_infuse.bank import choose
from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.bank.choose import Candidate, Trial, at_sizes, decide, trial_rows
from vcc_infuse.errors import UserError
from vcc_infuse.models import pretrained
from vcc_infuse.models.concat import networks_of
from vcc_infuse.run_config import RunConfig, pretrained_networks

RESNET = Timm("test_resnet", "none")  # native 160 px: compared at 96 and 160
VIT = Timm("test_vit", "none")


def data(labels=40, rows=100, classes=4, side=8):
    rng = np.random.default_rng(0)
    y = np.arange(rows) % classes
    x = rng.integers(0, 256, (rows, side, side, 3), dtype=np.uint8)
    x[:, 0, 0, 0] = y  # so that made-up features know the class
    x[:, 0, 0, 1] = np.arange(rows)
    names = [f"class {c}" for c in range(classes)]
    return SSLData.from_arrays(x, np.where(np.arange(rows) < labels, y, -1), classes=names)


@pytest.fixture
def made_up(monkeypatch):
    """Features of 16 numbers whose signal depends on network and size; seconds per image likewise."""
    asked = []

    def plan(signal, seconds, same=False):
        def key(network):
            return network.name, network.input_size

        def timed(trial, network):
            trial.built[choose._key(network)] = key(network)
            trial.seconds[choose._key(network)] = seconds[key(network)]
            return seconds[key(network)]

        def embedded(trial, network, rows):
            asked.append((network, len(rows)))
            raw = trial.dataset.train.x[rows]
            noise = np.random.default_rng(0 if same else list(SECONDS).index(network)).normal(size=(256, 16))[
                raw[:, 0, 0, 1]
            ]
            noise[:, :4] += signal[network] * np.eye(4)[raw[:, 0, 0, 0]]
            return torch.from_numpy(noise)

        monkeypatch.setattr(Trial, "_seconds", timed)
        monkeypatch.setattr(Trial, "_embed", embedded)
        monkeypatch.setattr(Trial, "_seconds_of_views", lambda trial, names: 0.0)
        return asked

    return plan


SECONDS = {("test_resnet", 96): 0.01, ("test_resnet", 160): 0.02, ("test_vit", 96): 0.03, ("test_vit", 160): 0.06}


def chosen(choice):
    return choice.encoder.name, choice.encoder.input_size


def test_the_planted_network_and_size_win(made_up):
    """A cheap candidate with a strong signal beats dearer ones without."""
    for best in SECONDS:
        made_up({key: 6.0 if key == best else 0.0 for key in SECONDS}, SECONDS)
        choice = choose_encoder(data(), [RESNET, VIT])
        assert chosen(choice) == best
        errors = {(c.encoder.name, c.encoder.input_size): c.error for c in choice.candidates}
        assert errors[best] < 0.1 < 0.5 < min(error for key, error in errors.items() if key != best)
        assert [c.minutes for c in choice.candidates] == sorted(c.minutes for c in choice.candidates)
        assert choice.lines()[-1].startswith(f"chosen: {best[0]} at {best[1]} px, ")


def test_two_halves_of_the_signal_are_better_side_by_side(made_up):
    made_up(dict.fromkeys(SECONDS, 2.0), SECONDS)
    names = ("test_resnet", "test_vit")
    choice = choose_encoder(
        data(), [*(Timm(name, "none", 160) for name in names), Concat("+".join(names), "none", 160)]
    )
    assert chosen(choice) == ("test_resnet+test_vit", 160)
    assert min(choice.candidates, key=lambda one: one.losses.mean()).encoder.name == choice.encoder.name
    minutes = {(c.encoder.name, c.encoder.input_size): c.minutes for c in choice.candidates}
    alone = [minutes["test_resnet", 160], minutes["test_vit", 160]]
    assert minutes["test_resnet+test_vit", 160] == pytest.approx(sum(alone))


def test_each_network_embeds_once_although_pairs_use_it_too(made_up):
    asked = made_up(dict.fromkeys(SECONDS, 1.0), SECONDS)
    choose_encoder(data(), [RESNET, VIT, Concat("test_resnet+test_vit", "none")])
    assert len(asked) == len({network for network, _ in asked}) == 4


def test_where_nothing_tells_them_apart_the_larger_is_taken(made_up):
    made_up(dict.fromkeys(SECONDS, 1.0), SECONDS, same=True)
    choice = choose_encoder(data(), [RESNET, VIT])
    assert chosen(choice) == ("test_vit", 160)


def test_what_takes_too_long_is_not_taken_nor_embedded(made_up):
    asked = made_up({key: 9.0 if key == ("test_vit", 160) else 1.0 for key in SECONDS}, SECONDS)
    whole = {key: 100 * 7 * seconds / 60 for key, seconds in SECONDS.items()}
    choice = choose_encoder(data(), [RESNET, VIT], minutes=whole["test_vit", 96] + 0.01)
    assert chosen(choice) != ("test_vit", 160)
    assert ("test_vit", 160) not in [network for network, _ in asked]
    assert "of those that take at most" in choice.reason


def test_too_few_minutes_take_the_cheapest_and_say_so(made_up):
    made_up(dict.fromkeys(SECONDS, 1.0), SECONDS)
    choice = choose_encoder(data(), [RESNET, VIT], minutes=0.001)
    assert chosen(choice) == ("test_resnet", 96)
    assert choice.lines()[-1].endswith("the fastest, because none embeds all images within 0.001 minutes")


def test_one_label_per_class_takes_the_largest_that_fits_and_says_so(made_up):
    made_up(dict.fromkeys(SECONDS, 1.0), SECONDS)
    choice = choose_encoder(data(labels=4), [RESNET, VIT])
    assert chosen(choice) == ("test_vit", 160)
    assert "too few labels to compare" in choice.reason
    assert "not compared" in choice.lines()[1]


def test_views_test_images_and_processes_count(made_up):
    made_up(dict.fromkeys(SECONDS, 1.0), SECONDS)
    four = data()
    tested = SSLData.from_arrays(
        four.dataset.train.x, four.dataset.train.y, four.dataset.train.x[:10], np.arange(10) % 4,
        classes=four.dataset.classes,
    )  # fmt: skip
    choice = choose_encoder(tested, [RESNET], bank=BankConfig(1, 1), processes=2)
    expected = [(100 * 3 + 10) * SECONDS["test_resnet", side] / 60 / 2 for side in (96, 160)]
    assert [c.minutes for c in choice.candidates] == pytest.approx(expected)


def test_the_comparison_is_small_beside_the_embedding(made_up, monkeypatch):
    """At most a tenth of what the dearest candidate takes, in images: 700 views at 0.08 s, 0.12 s for all four."""
    asked = made_up(dict.fromkeys(SECONDS, 1.0), SECONDS)
    monkeypatch.setattr(choose, "SECONDS", 0.0)
    choose_encoder(data(), [RESNET, VIT])
    assert {count for _, count in asked} <= {34, 35}


def test_rows_are_balanced_capped_and_filled_up(monkeypatch):
    monkeypatch.setattr(choose, "MOST_LABELS", 10)
    monkeypatch.setattr(choose, "SAMPLE", 30)
    images = data(labels=60)
    rows, labels = trial_rows(images, seed=3)
    assert len(rows) == len(set(rows)) == 30
    assert sorted(np.bincount(labels[:10])) == [2, 2, 3, 3]
    assert (labels[10:] == -1).all()
    assert (images.dataset.train.y[rows[:10]] == labels[:10]).all()
    assert not set(rows[10:]) & set(images.split.labeled)
    assert (trial_rows(images, seed=4)[0] != rows).any()


def candidates(*losses, rows=50):
    rng = np.random.default_rng(0)
    shared = rng.normal(1, 0.5, rows)
    return [
        Candidate(Timm("test_resnet", "none", 10 * i), i, shared + loss + rng.normal(0, 0.01, rows), 0.1)
        for i, loss in enumerate(losses, start=1)
    ]


def test_the_largest_within_the_noise_of_the_best():
    """Paired: the common part of the losses, fifty times the differences, does not count."""
    best, reason = decide(candidates(0.1, 0.0, 0.1), minutes=10)
    assert (best.minutes, reason) == (2, "the lowest log loss")
    tied, reason = decide(candidates(0.1, 0.0, 0.0), minutes=10)
    assert tied.minutes == 3
    best, reason = decide(candidates(0.1, 0.0, 0.1, 0.0), minutes=3.5)
    assert (best.minutes, reason) == (2, "the lowest log loss of those that take at most 3.5 minutes")


def test_sizes_up_to_the_native_one(monkeypatch):
    def sizes(network):
        return [option.input_size for option in at_sizes(network)]

    assert sizes(Timm("tf_efficientnet_lite0")) == [96, 160, 224]
    assert sizes(Timm("tf_efficientnet_lite2")) == [96, 160, 260]
    assert sizes(Timm("tf_efficientnet_lite2", input_size=200)) == [200]
    assert sizes(Concat("tf_efficientnet_lite0+tf_efficientnet_lite2")) == [96, 160, "224+260"]
    assert sizes(Concat("test_vit+tf_efficientnet_lite2")) == ["96+160", "160+260"]


def test_networks_at_hand_and_their_pairs(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name, size in (("test_vit.r160_in1k", 9), ("test_resnet.r160_in1k", 3), ("no_such_network", 1)):
        snapshot = tmp_path / f"models--timm--{name}" / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").write_bytes(b"x" * size)
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("abc")
    monkeypatch.setattr(pretrained, "PACKAGES", {"tf_efficientnet_lite0": "torch", "lite9": "no_such_package"})
    names = ["tf_efficientnet_lite0", "test_resnet.r160_in1k", "test_vit.r160_in1k"]
    assert pretrained.names_at_hand() == names
    found = [network.name for network in choose.networks_at_hand()]
    assert found[:3] == names
    assert found[3:] == ["+".join(names[:2]), "+".join([names[0], names[2]]), "+".join(names[1:])]


def test_a_network_that_cannot_be_loaded_is_left_out_unless_there_is_no_other(tmp_path):
    broken = Timm("test_resnet", str(tmp_path / "missing.pth"))
    images = data(side=32)
    choice = choose_encoder(images, [broken, VIT], minutes=1000, device="cpu", cache=str(tmp_path))
    assert {c.encoder.name for c in choice.candidates} == {"test_vit"}
    with pytest.raises(UserError, match="weights must be auto, .* or a file, got .*missing"):
        choose_encoder(images, [broken], device="cpu")


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), "ten"])
def test_minutes_must_be_positive(minutes):
    with pytest.raises(UserError, match="minutes must be a finite number above 0"):
        choose_encoder(data(), [RESNET], minutes=minutes)


def test_what_the_user_gives_restricts_the_candidates(monkeypatch):
    at_hand = [Timm("a"), Timm("b"), Concat("a+b")]
    monkeypatch.setattr("vcc_infuse.run_config.networks_at_hand", lambda: at_hand)

    def networks(model, preset="frozen"):
        config = RunConfig.from_options({"model": model, "preset": preset})
        built = None if model is None else config.build("model")
        return [(one.name, one.input_size) for one in pretrained_networks(config, built)]

    everything = [("a", None), ("b", None), ("a+b", None)]
    assert networks(None) == networks("Timm") == networks(None, "auto") == everything
    sized = {"class_path": "Timm", "init_args": {"input_size": 64}}
    assert networks(sized) == [("a", 64), ("b", 64), ("a+b", 64)]
    named = {"class_path": "Timm", "init_args": {"name": "c+d"}}
    assert networks(named) == [("c+d", None)]
    assert networks({"class_path": "Timm", "init_args": {"weights": "none"}}) == [("tf_efficientnet_lite0", None)]
    assert networks(Timm("e", input_size=32)) == [("e", 32)]
    assert networks("SmallConv", "auto") == []
    assert networks(None, "scratch") == []


def test_a_run_records_its_choice_and_repeats_it_without_choosing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("vcc_infuse.run_config.networks_at_hand", lambda: [RESNET, VIT])
    monkeypatch.setattr(choose, "SIDES", (32,))
    monkeypatch.setattr(Timm, "native_size", lambda network: 64)
    options = dict(bank=BankConfig(1, 1), steps=2, batch_size=4, device="cpu", cache=str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    from PIL import Image

    for i in range(24):
        (folder / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
        image = np.random.default_rng(i).integers(0, 128, (40 + i, 50, 3), dtype=np.uint8)
        image[:, :, i % 2] += 100
        Image.fromarray(image).save(folder / f"class{i % 2}" / f"{i}.png")
    out = tmp_path / "run"
    result = train(str(folder), labels=12, preset="frozen", out=str(out), minutes=1000, **options)
    shown = capsys.readouterr().out
    assert "networks compared on the labels" in shown, shown
    assert f"chosen: {result.summary['encoder']} at {result.summary['input_size']} px" in shown
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["minutes"] == 1000
    assert config["model"]["init_args"]["name"] == json.loads((out / "summary.json").read_text())["encoder"]
    assert config["model"]["init_args"]["input_size"] == result.summary["input_size"]
    # Photos are decoded at the largest size that was compared, and again only if the choice is much smaller.
    assert config["size"] == (64 if result.summary["input_size"] == 64 else 32)
    monkeypatch.setattr(choose, "Trial", None)
    again = RunConfig.from_yaml((out / "config.yaml").read_text())
    from vcc_infuse.run import start

    repeated = start(again)
    assert repeated.summary["encoder"] == result.summary["encoder"]
    assert repeated.summary["error"] == result.summary["error"]
    # Another run on the same labels takes what was chosen; on others, or where the file is damaged, it compares again.
    other = train(str(folder), labels=12, preset="frozen", algorithm="FixMatch", minutes=1000, **options)
    assert other.summary["encoder"] == result.summary["encoder"]
    assert other.summary["input_size"] == result.summary["input_size"]
    assert "(compared in an earlier run)" in capsys.readouterr().out
    (kept,) = (tmp_path / "cache" / "choices").iterdir()
    for change in ({"labels": 10}, {"minutes": 900}, {}):
        if not change:
            kept.write_bytes(kept.read_bytes()[:-9])
        with pytest.raises(TypeError, match="'NoneType' object is not callable"):
            train(str(folder), **{"labels": 12, "preset": "frozen", "minutes": 1000, **options, **change})


def test_no_weights_at_all_is_one_line_as_ever(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(choose, "names_at_hand", lambda: [])
    monkeypatch.setattr(pretrained, "PACKAGES", {"tf_efficientnet_lite0": "no_such_package"})
    tries = []
    monkeypatch.setattr(pretrained, "_online", lambda: tries.append(1))
    monkeypatch.setattr(pretrained, "_downloaded", lambda repository: None)
    options = dict(steps=2, batch_size=4, device="cpu", cache=str(tmp_path))
    result = train(data(side=32), **options)
    assert result.summary["preset"] == "scratch"
    assert "there are no weights for tf_efficientnet_lite0 on this machine" in capsys.readouterr().out
    assert len(tries) == 1, "the hub is asked once, not once per size"
    with pytest.raises(UserError, match="there are no weights for tf_efficientnet_lite0 on this machine"):
        train(data(side=32), preset="frozen", **options)


def test_sizes_of_built_networks_share_weights_and_agree_with_fresh_ones(tmp_path):
    """A network is loaded once and shown images of another size; one with position embeddings is built anew."""
    from vcc_infuse.bank.embed import make_encoder

    images = data(side=32)
    for name in ("test_resnet", "test_vit"):
        work = choose.Work(BankConfig(1, 1), torch.device("cpu"), "torch", str(tmp_path), 1)
        trial = Trial(images, work, 1000.0, 0)
        for side in (96, 160):
            option = Timm(name, "none", side)
            trial._seconds(option)
            ours = trial._embed(trial.built[choose._key(option)], np.arange(3))
            fresh, _ = make_encoder(option, images.dataset.shape)
            raw = torch.from_numpy(images.dataset.train.x[:3])
            views = trial.built[choose._key(option)].views("plain", raw)
            torch.testing.assert_close(ours.float(), fresh.eval()(views), rtol=5e-3, atol=5e-3)
        assert networks_of(trial._load(option))[0] is trial._load(option)
