"""`vcc-infuse train`: where options come from, what config.yaml holds, resuming, several processes."""

import json

import pytest
import yaml
from safetensors.torch import load_file
from tests.helpers.processes import together

from vcc_infuse.cli.main import main
from vcc_infuse.training.trainer import Trainer

DATA = "train --data digits --labels 40"
QUICK = "--steps 6 --eval_every 3 --batch_size 8 --unlabeled_ratio 2 --progress false --model SmallConv --model.width 4"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "digits"
    assert main(f"{DATA} --algorithm FixMatch {QUICK} --out {out}".split()) == 0
    return out


def printed(words, capsys):
    """The configuration that --print_config prints, as a dict."""
    assert main([*words.split(), "--print_config"]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def weights(folder):
    return {name: tensor.tolist() for name, tensor in load_file(folder / "model.safetensors").items()}


def test_config_is_complete_and_reruns_the_run(run, tmp_path):
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["algorithm"] == {
        "class_path": "vcc_infuse.FixMatch", "init_args": {"threshold": 0.95, "weight": 1.0},
    }  # fmt: skip
    assert (config["data"], config["labels"], config["steps"], config["lr"]) == ("digits", 40, 6, 0.03)
    assert main(f"train --config {run}/config.yaml --out {tmp_path}/again".split()) == 0
    assert (tmp_path / "again" / "config.yaml").read_text() == (run / "config.yaml").read_text()
    assert weights(tmp_path / "again") == weights(run)


def test_a_printed_configuration_runs_the_same(run, tmp_path, capsys):
    assert main(f"{DATA} --algorithm FixMatch {QUICK} --print_config".split()) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    assert main(f"train --config {tmp_path}/printed.yaml --out {tmp_path}/run".split()) == 0
    assert (tmp_path / "run" / "config.yaml").read_text() == (run / "config.yaml").read_text()
    assert weights(tmp_path / "run") == weights(run)


def test_the_folder_is_chosen_if_it_is_not_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, name in (("", "digits-1"), ("--algorithm FixMatch", "digits-FixMatch-1"), ("", "digits-2")):
        assert main(f"{DATA} {words} {QUICK} --steps 1 --report false".split()) == 0
        assert f"run folder: runs/{name}\n" in capsys.readouterr().out
        assert (tmp_path / f"runs/{name}/summary.json").is_file()


def test_the_command_line_wins_over_the_configuration(run, capsys):
    config = printed(f"train --seed 3 --algorithm PseudoLabel --config {run}/config.yaml", capsys)
    assert (config["seed"], config["steps"]) == (3, 6)
    assert config["algorithm"]["class_path"] == "vcc_infuse.PseudoLabel"


def test_the_configuration_wins_over_the_preset(tmp_path, capsys):
    (tmp_path / "some.yaml").write_text("preset: paper\ndata: cifar100\nsteps: 77\nmodel: WideResNet\n")
    config = printed(f"train --config {tmp_path}/some.yaml --eval_every 11", capsys)
    assert (config["steps"], config["eval_every"], config["weight_decay"]) == (77, 11, 1e-3)
    assert config["model"]["init_args"]["width"] == 2, "the width 8 belongs to the network of the preset"


def test_arguments_of_another_class_do_not_leak(tmp_path, capsys):
    """SmallConv and WideResNet both have a width: choosing one must not keep the other's."""
    config = printed(f"{DATA} --model.depth 10 --model WideResNet", capsys)
    arguments = config["model"]["init_args"]
    assert (arguments["depth"], arguments["width"], arguments["bn_momentum"]) == (10, 2, 0.001)
    (tmp_path / "some.yaml").write_text(
        """
        model: {class_path: vcc_infuse.SmallConv, init_args: {width: 7, dropout: 0.5}}
        algorithm:
          class_path: DARP
          init_args: {alpha: 3, base: {class_path: FixMatch, init_args: {threshold: 0.7}}}
        """
    )
    config = printed(f"{DATA} --config {tmp_path}/some.yaml --model WideResNet --algorithm.base FlexMatch", capsys)
    arguments, base = config["model"]["init_args"], config["algorithm"]["init_args"]["base"]
    assert (arguments["width"], arguments["dropout"]) == (2, 0.0)
    assert (base["class_path"], base["init_args"]["threshold"]) == ("vcc_infuse.FlexMatch", 0.95)
    assert config["algorithm"]["init_args"]["alpha"] == 3
    config = printed(f"{DATA} --config {tmp_path}/some.yaml --model.width 9", capsys)
    assert config["model"]["init_args"] == {"width": 9, "dropout": 0.5, "bn_momentum": 0.1}


def test_a_selector_can_be_removed(tmp_path, capsys):
    (tmp_path / "some.yaml").write_text("selector: {class_path: INFUSE, init_args: {keep: 0.2}}\n")
    assert printed(f"{DATA} --config {tmp_path}/some.yaml", capsys)["selector"]["init_args"]["keep"] == 0.2
    assert printed(f"{DATA} --config {tmp_path}/some.yaml --selector null", capsys)["selector"] is None


@pytest.mark.parametrize("order", ["--algorithm DARP --algorithm.base {} --algorithm.base.threshold 0.5",
                                   "--algorithm.base.threshold=0.5 --algorithm.base={} --algorithm=DARP"])  # fmt: skip
@pytest.mark.parametrize("name", ["FlexMatch", "vcc_infuse.FlexMatch"])
def test_the_base_of_a_plug_in(order, name, capsys):
    base = printed(f"{DATA} {order.format(name)}", capsys)["algorithm"]["init_args"]["base"]
    assert (base["class_path"], base["init_args"]["threshold"]) == ("vcc_infuse.FlexMatch", 0.5)


def test_a_class_of_the_user(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_for_train.py").write_text(
        "from vcc_infuse import FixMatch\n"
        "class Mine(FixMatch):\n"
        "    def __init__(self, threshold: float = 0.5, weight: float = 1.0, extra: int = 3) -> None:\n"
        "        super().__init__(threshold=threshold, weight=weight)\n"
        "        self.extra = extra\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = f"{DATA} --algorithm mine_for_train.Mine --algorithm.extra 4 {QUICK} --out {tmp_path}/run"
    assert main(words.split()) == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["algorithm"]
    assert config == {
        "class_path": "mine_for_train.Mine", "init_args": {"threshold": 0.5, "weight": 1.0, "extra": 4},
    }  # fmt: skip


def test_a_switch_may_stand_alone(capsys):
    words = f"{DATA} --download --compile --selector RobustINFUSE --selector.resample_each_pass --flip --report false"
    config = printed(words, capsys)
    assert config["download"] is config["compile"] is config["flip"] is True
    assert config["selector"]["init_args"]["resample_each_pass"] is True
    assert config["report"] is False


def test_default_preset(capsys):
    config = printed(DATA, capsys)
    assert (config["preset"], config["steps"], config["eval_every"]) == ("scratch", 1000, 50)
    assert [config[name]["class_path"] for name in ("model", "algorithm", "calibrator")] == [
        "vcc_infuse.SmallConv", "vcc_infuse.FixMatch", "vcc_infuse.Softmax",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [
    "", "--preset paper", "--algorithm DARP --algorithm.base FlexMatch", "--selector INFUSE --selector.keep 0.3",
    "--calibrator VCC --calibrator.latent_dim 3", "--model WideResNet --model.depth 10",
])  # fmt: skip
def test_a_printed_configuration_prints_itself(words, tmp_path, capsys):
    config = printed(f"{DATA} {words}", capsys)
    (tmp_path / "once.yaml").write_text(yaml.safe_dump(config))
    assert printed(f"train --config {tmp_path}/once.yaml", capsys) == config


def test_a_finished_run_is_not_resumed(run, capsys):
    assert main(["train", "--resume", str(run)]) == 2
    assert "finished" in capsys.readouterr().err


def test_resume_takes_no_other_options(run, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    assert main(["train", "--resume", str(tmp_path), "--lr", "1"]) == 2
    assert "so --lr cannot change; start a new run with --config" in capsys.readouterr().err


def test_an_interrupted_run_continues_as_if_nothing_had_happened(run, tmp_path, monkeypatch, capsys):
    out, step = tmp_path / "run", Trainer.train_step

    def stop(self, number):
        if number == 4:
            raise KeyboardInterrupt
        step(self, number)

    monkeypatch.setattr(Trainer, "train_step", stop)
    assert main(f"{DATA} --algorithm FixMatch {QUICK} --out {out}".split()) == 130
    monkeypatch.setattr(Trainer, "train_step", step)
    assert not (out / "summary.json").exists()
    assert main(["train", "--resume", str(out), "--device", "cpu", "--progress", "false"]) == 0
    assert f"run folder: {out}" in capsys.readouterr().out
    assert weights(out) == weights(run)
    lines = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines == [3, 6]


def test_two_processes_write_one_run(tmp_path):
    out = tmp_path / "run"
    together(2, lambda: main(f"{DATA} {QUICK} --out {out}".split()), tmp_path / "log.txt")
    assert (tmp_path / "log.txt").read_text().count("run folder:") == 1
    assert json.loads((out / "summary.json").read_text())["processes"] == 2
