"""A model folder with its card: a local round trip, and the hub through a stand-in for its client."""

import json

import pytest
import torch
import yaml
from huggingface_hub.errors import HfHubHTTPError
from tests.helpers.blobs import blobs

from vcc_infuse import MLP, Predictor, SmallConv, SSLData, Trainer, UserError
from vcc_infuse.inference import hub


@pytest.fixture(scope="module")
def run(tmp_path_factory, digits):
    folder = tmp_path_factory.mktemp("hub") / "run"
    options = dict(steps=4, batch_size=8, unlabeled_ratio=2, progress=False, device="cpu", report=False)
    Trainer(SmallConv(4), out=str(folder), **options).fit(digits)
    return folder


def parts(card):
    _, header, body = card.split("---\n", 2)
    return yaml.safe_load(header), body


def test_a_saved_model_is_the_same_model(run, tmp_path, digits):
    original = Predictor.load(run)
    assert original.save_pretrained(tmp_path / "model") == tmp_path / "model"
    again = Predictor.from_pretrained(tmp_path / "model", device="cpu")
    x = digits.dataset.test.x[:20]
    torch.testing.assert_close(tuple(original.predict(x)), tuple(again.predict(x)), rtol=0, atol=0, equal_nan=True)
    assert again.summary == original.summary == json.loads((run / "summary.json").read_text())
    assert {path.name for path in (tmp_path / "model").iterdir()} == set(hub.FILES)


def test_the_card_says_what_it_is(run, tmp_path):
    predictor = Predictor.load(run)
    header, body = parts((predictor.save_pretrained(tmp_path / "digits") / "README.md").read_text())
    assert header["pipeline_tag"] == "image-classification"
    assert header["library_name"] == "vcc-infuse"
    assert "# digits" in body
    assert "into 10 classes: `0`, `1`" in body
    assert "trained on images of 8×8×1" in body
    assert "Trained on 40 labels in 4 steps." in body
    assert "test examples" in body
    assert f"| error | {predictor.summary['error']:.4f} |" in body
    assert 'Predictor.from_pretrained("digits")' in body


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"evaluated_on": "validation", "evaluated_images": 1234, "error": 0.25},
         "Measured on 1,234 labeled examples kept for validation"),
        ({"evaluated_on": "test", "evaluated_images": 10, "error": 0.25}, "Measured on 10 test examples"),
        ({"evaluated_on": None, "error": None}, "was not measured"),
        (None, "was not measured"),
    ],
)  # fmt: skip
def test_the_card_says_what_its_figures_are_taken_on(facts, expected):
    assert expected in hub.figures(facts)


def test_a_model_of_vectors_without_figures(tmp_path):
    x, y = blobs(40)
    trainer = Trainer(MLP((8,)), steps=2, batch_size=4, unlabeled_ratio=2, progress=False, device="cpu")
    trainer.fit(SSLData.from_arrays(x.float().numpy(), y.numpy()))
    header, body = parts((trainer.predictor().save_pretrained(tmp_path) / "README.md").read_text())
    assert header["pipeline_tag"] == "tabular-classification"
    assert "vectors of 30 values" in body
    assert "was not measured on labeled data" in body


class Api:
    """Keeps what it is given, as the hub would."""

    def __init__(self, root):
        self.root, self.calls = root, []

    def __call__(self):
        return self

    def create_repo(self, name, private, exist_ok):
        self.calls.append((name, private, exist_ok))
        return f"https://huggingface.co/{name}"

    def upload_folder(self, repo_id, folder_path, commit_message, allow_patterns):
        target = self.root / repo_id
        target.mkdir(parents=True)
        for path in folder_path.iterdir():
            if path.name in allow_patterns:
                (target / path.name).write_bytes(path.read_bytes())

    def snapshot_download(self, name, revision, allow_patterns):
        return str(self.root / name)


def test_up_to_the_hub_and_back(run, tmp_path, monkeypatch, digits):
    api = Api(tmp_path)
    monkeypatch.setattr(hub, "HfApi", api)
    monkeypatch.setattr(hub, "snapshot_download", api.snapshot_download)
    predictor = Predictor.load(run)
    assert predictor.push_to_hub("someone/digits", private=True) == "https://huggingface.co/someone/digits"
    assert api.calls == [("someone/digits", True, True)]
    assert "# someone/digits" in (tmp_path / "someone" / "digits" / "README.md").read_text()
    again, x = Predictor.from_pretrained("someone/digits"), digits.dataset.test.x[:20]
    assert torch.equal(predictor.predict(x).probs, again.predict(x).probs)


def test_a_refusal_of_the_hub_is_one_line(run, tmp_path, monkeypatch):
    def refuse(*words, **options):
        raise HfHubHTTPError("401 Client Error:\n no token", response=Refused())

    class Refused:
        headers, request, status_code = {}, None, 401

    api = Api(tmp_path)
    monkeypatch.setattr(hub, "HfApi", api)
    monkeypatch.setattr(api, "create_repo", refuse)
    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(UserError, match=r"^a/b cannot be uploaded \(401 Client Error: no token.*hf auth login`"):
        Predictor.load(run).push_to_hub("a/b")
    with pytest.raises(UserError, match=r"^a/b is neither a folder nor a model that the hub gives \(401"):
        Predictor.from_pretrained("a/b")


def test_names_that_the_hub_cannot_have_are_one_line():
    with pytest.raises(UserError, match=r"^no/such/folder is neither a folder nor a model"):
        Predictor.from_pretrained("no/such/folder")


def test_a_file_is_no_folder(run, tmp_path):
    (tmp_path / "model").write_text("")
    with pytest.raises(UserError, match="is a file; give a folder"):
        Predictor.load(run).save_pretrained(tmp_path / "model")
