"""A method of your own in one short class: FixMatch whose threshold rises over the run.

python examples/own_algorithm.py
vcc-infuse train --data digits --labels 40 --import examples/own_algorithm.py --algorithm own_algorithm.RisingMatch
"""

import sys

from vcc_infuse import Calibrated, PseudoLabeling, PseudoLabels, Step, train


class RisingMatch(PseudoLabeling):
    """Accept unsure pseudo labels at first and only sure ones at the end.

    Args:
        low: threshold at the first step.
        high: threshold at the last step.
    """

    def __init__(self, *, low: float = 0.7, high: float = 0.98) -> None:
        super().__init__()
        self.low = low
        self.high = high

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        threshold = self.low + (self.high - self.low) * step.progress
        return PseudoLabels(calibrated.labels, (calibrated.confidence >= threshold).float())


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    summary = train("digits", labels=40, algorithm=RisingMatch(), steps=steps, eval_every=100).summary
    print(f"error {100 * summary['error']:.1f} %, ECE {summary['ece']:.3f}")
