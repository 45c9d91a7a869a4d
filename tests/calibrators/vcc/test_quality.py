import torch

from vcc_infuse import FixMatch, SmallConv, SSLData, Trainer
from vcc_infuse.calibrators.vcc import VCC
from vcc_infuse.calibrators.vcc.scores import Rows, target_confidence
from vcc_infuse.data.split import balanced
from vcc_infuse.data.ssl_data import load
from vcc_infuse.metrics import auroc

RECORDS: list[tuple[torch.Tensor, ...]] = []


class RecordingVCC(VCC):
    """Records both targets, the pseudo label and the id of each newest row of the queue."""

    def forward(self, step, images, outputs):
        out = super().forward(step, images, outputs)
        if self.training and step.number >= 40:
            memory, queue = self.queue, self.queued()
            slots = (memory.cursor - len(images) + torch.arange(len(images))) % memory.size
            rows = Rows(*(column[slots] for column in queue))
            classes = self.history.classes + 1
            both = [
                target_confidence(rows, queue, classes, fusion=fusion, min_per_class=16)
                for fusion in ("corrected", "printed")
            ]
            RECORDS.append((*both, rows.labels, step.batch.pool_ids))
        return out


def test_corrected_target_ranks_correct_pseudo_labels_first_and_the_printed_one_last():
    digits = load("digits")
    data = SSLData(digits, balanced(digits.train.y, 20, digits.classes, 0))
    options = {"steps": 120, "batch_size": 32, "unlabeled_ratio": 4, "precision": "fp32", "device": "cpu"}
    RECORDS.clear()
    Trainer(SmallConv(width=12), FixMatch(), RecordingVCC(reconstruct="none"), progress=False, **options).fit(data)
    corrected, printed, labels, ids = (torch.cat(column) for column in zip(*RECORDS, strict=True))
    right = labels == torch.as_tensor(data.pool_truth)[ids]
    assert 0.1 < right.float().mean() < 0.99
    assert auroc(corrected, right) > 0.65
    assert auroc(printed, right) < 0.5
