"""A calibrator of your own in one short class: trust a label less where earlier predictions for the image differ.

python examples/own_calibrator.py [steps]
vcc-infuse train --data digits --labels 40 --import examples/own_calibrator.py --calibrator own_calibrator.Agreement
"""

import sys

import torch

from vcc_infuse import Calibrated, Calibrator, FixMatch, train
from vcc_infuse.functional import set_top_confidence


class Agreement(Calibrator):
    """Multiply the softmax confidence by how much earlier predictions of the same image agree with its label.

    Args:
        momentum: of the average of earlier predictions.
    """

    def __init__(self, *, momentum: float = 0.5) -> None:
        super().__init__()
        self.momentum = momentum

    def setup(self, model, task):
        """State is buffers: it is saved, resumed and moved to the device with the run."""
        self.register_buffer("mean", torch.full((task.pool, task.classes), 1 / task.classes))

    def forward(self, step, images, outputs):
        """While training. `outputs` are the model's for the weak views; memories change only in training mode."""
        probs = outputs.logits.detach().float().softmax(1)
        confidence, labels = probs.max(1)
        ids = step.batch.pool_ids
        agreement = self.mean[ids].gather(1, labels[:, None])[:, 0]
        if self.training:
            everywhere = step.gather(ids)  # of all processes, if there are several
            self.mean[everywhere] = step.gather(probs).lerp(self.mean[everywhere], self.momentum)
        probs = set_top_confidence(probs, (confidence * agreement).sqrt())
        return Calibrated(probs, probs.amax(1))

    def predict(self, outputs):
        """For new images, which have no past."""
        return outputs.logits.float().softmax(1).amax(1)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    method = FixMatch(threshold=0.8)
    summary = train("digits", labels=40, algorithm=method, calibrator=Agreement(), steps=steps, eval_every=100).summary
    print(f"error {100 * summary['error']:.1f} %, ECE {summary['ece']:.3f}")
