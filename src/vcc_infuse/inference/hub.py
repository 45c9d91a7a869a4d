"""Model folders and the Hugging Face Hub: the model card, upload and download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCardData, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from ..errors import UserError
from ..utils.suggest import did_you_mean_path

FILES = ["model.json", "model.safetensors", "summary.json", "README.md", "manifest.json"]
FIGURES = {
    "error": "error",
    "error_balanced": "balanced error",
    "ece": "ECE of the softmax",
    "ece_calibrated": "ECE of the calibrated confidence",
    "nll": "NLL",
}
KINDS = {"validation": "labeled examples kept for validation", "test": "test examples"}
REFUSALS = (HfHubHTTPError, HFValidationError, OSError)
SHOWN = 20  # classes named in the card
USE = """```python
from vcc_infuse import Predictor

predictor = Predictor.from_pretrained("{name}")  # a folder, or a repository of the hub
answers = predictor.predict({inputs})
print([predictor.classes[label] for label in answers.labels])
```"""


def download(name: str, revision: str | None = None) -> Path:
    """The files of a model on the hub, from its cache if they are there."""
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES))
    except REFUSALS as fault:
        reason = " ".join(str(fault).split())[:200]
        hint = did_you_mean_path(name)
        raise UserError(f"{name} is neither a folder nor a model that the hub gives ({reason}){hint}") from fault


def upload(folder: Path, name: str, private: bool, message: str) -> str:
    """Create the repository unless it exists, upload the folder, and return the address."""
    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, allow_patterns=FILES)
    except REFUSALS as fault:
        reason = " ".join(str(fault).split())[:200]
        remedy = "log in with `hf auth login`, and give USER/NAME"
        raise UserError(f"{name} cannot be uploaded ({reason}); {remedy}") from fault
    return str(address)


def model_card(name: str, card: Mapping[str, Any], summary: Mapping[str, Any] | None) -> str:
    """README.md for a model: `card` is its model.json, `summary` its summary.json."""
    images = len(card["shape"]) == 3
    classes = card["classes"]
    task = "image-classification" if images else "tabular-classification"
    tags = ["vcc-infuse", "semi-supervised-learning", "calibration"]
    header = ModelCardData(library_name="vcc-infuse", pipeline_tag=task, tags=tags).to_yaml()
    more = f" and {len(classes) - SHOWN} more in `model.json`" if len(classes) > SHOWN else ""
    names = ", ".join(f"`{name}`" for name in classes[:SHOWN]) + more
    network, calibrator = (card[part]["class_path"].rpartition(".")[2] for part in ("backbone", "calibrator"))
    size = "×".join(map(str, card["shape"]))
    facts = [
        f"- Task: {'images' if images else 'feature vectors'} into {len(classes)} classes: {names}.",
        f"- Network: {network}, trained on "
        + (f"images of {size}; other sizes are resized." if images else f"vectors of {size} values."),
        f"- Confidence: calibrated by {calibrator}.",
    ]
    if summary:
        facts.append(f"- Trained on {summary.get('labels', '?')} labels in {summary.get('steps', '?')} steps.")
    use = USE.format(name=name, inputs='"photos/"' if images else "rows")
    parts = [f"---\n{header}\n---", f"# {name}", "\n".join(facts), "## Figures", figures(summary), "## Use", use]
    end = "Made with vcc-infuse. The weights are in safetensors; nothing is unpickled."
    return "\n\n".join([*parts, end]) + "\n"


def figures(summary: Mapping[str, Any] | None) -> str:
    """The table of the card, and which images its figures are taken on."""
    values = {name: (summary or {}).get(key) for key, name in FIGURES.items()}
    rows = [f"| {name} | {value:.4f} |" for name, value in values.items() if isinstance(value, float)]
    if summary is None or not rows:
        return "None: this model was not measured on labeled data."
    kind = KINDS[summary.get("evaluated_on") or "test"]
    count = f"{summary['evaluated_images']:,} " if summary.get("evaluated_images") else "the "
    return "\n".join([f"Measured on {count}{kind}; rates are fractions of 1.", "", "| | |", "|---|---|", *rows])
