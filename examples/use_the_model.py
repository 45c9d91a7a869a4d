"""After training: label files, a stream and arrays, export to ONNX, and save a folder with a model card.

Run: python examples/use_the_model.py [steps]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

from vcc_infuse import Predictor, export_model, load_ssl, train


def main(steps: int, folder: Path) -> None:
    data = load_ssl("digits", labels=40)
    run = folder / "run"
    photos = folder / "photos"
    train(data, preset="scratch", calibrator="TemperatureScaling", steps=steps, out=str(run), progress=False)
    photos.mkdir()
    for i, image in enumerate(data.dataset.test.x[:5]):
        Image.fromarray(image[..., 0]).resize((64, 64)).save(photos / f"{i}.png")

    predictor = Predictor.load(run)
    for found in predictor.stream(photos, abstain=0.5):
        print(f"{found.name}: {found.label or f'unsure, perhaps {found.best_label}'} ({found.calibrated:.0%})")

    images = data.dataset.test.x[:100]
    expected = predictor.predict(images)
    session = onnxruntime.InferenceSession(export_model(predictor, folder / "model.onnx"))
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    names = ["probabilities", "label", "confidence"]  # a model on a bank also has "unknown" and "unknown_p"
    probabilities, label, confidence = session.run(names, {"images": images})
    print(f"ONNX: the first image is a {classes[label[0]]}, with confidence {confidence[0]:.2f}")
    print(f"largest difference from PyTorch: {np.abs(probabilities - expected.probs.numpy()).max():.1e}")

    again = Predictor.from_pretrained(predictor.save_pretrained(folder / "model"))
    assert again.predict(images).labels.equal(expected.labels)
    print((folder / "model" / "README.md").read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 300, Path(temporary))
