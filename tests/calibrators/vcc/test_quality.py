import torch

from vcc_infuse import FixMatch, SmallConv, SSLData, Trainer, load
from vcc_infuse.calibrators.vcc.calibrator import VCC
from vcc_infuse.calibrators.vcc.fusion import Rows, interpolate
from vcc_infuse.data.split import balanced
from vcc_infuse.metrics import auroc

NOTES: list = []


class Watched(VCC):
    """Notes the newest queue rows' two targets and whose they are."""

    def forward(self, step, images, outputs):
        out = super().forward(step, images, outputs)
        if self.training and step.number >= 40:
            memory, queue = self.evidence.memory, self.evidence._queue()
            slots = (memory.cursor - len(images) + torch.arange(len(images))) % memory.size
            rows = Rows(*(column[slots] for column in queue))
            both = [interpolate(rows, queue, self.evidence.classes + 1, f, 16) for f in ("corrected", "paper")]
            NOTES.append((*both, rows.labels, step.batch.pool_ids))
        return out


def test_corrected_target_finds_right_pseudo_labels_and_the_printed_one_wrong_ones():
    digits = load("digits")
    data = SSLData(digits, balanced(digits.train.y, 20, digits.classes, 0))
    options = {"steps": 120, "epochs": 1, "batch": 32, "ratio": 4, "precision": "fp32", "cpu": True, "progress": False}
    NOTES.clear()
    Trainer(SmallConv(width=12), FixMatch(), Watched(reconstruct="none"), **options).fit(data)
    corrected, printed, labels, ids = (torch.cat(column) for column in zip(*NOTES, strict=True))
    right = labels == torch.as_tensor(data.pool_truth)[ids]
    assert 0.1 < right.float().mean() < 0.99
    assert auroc(corrected, right) > 0.65
    assert auroc(printed, right) < 0.5
