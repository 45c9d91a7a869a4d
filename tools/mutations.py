"""Wrong versions of calibrators, selectors, algorithms and wrappers, each of which a test must catch.

    python tools/mutations.py [--only WORD] [--out results/mutations.md]
    python tools/mutations.py --check

Works in a temporary copy of the tree: replace one piece of text in one file, run the named tests of the fast suite,
put it back. Exits with 1 if a mutation survives. A text that is not in its file exactly once, and tests that fail
without any mutation or cannot be collected with one, are mistakes in this list and end the run. `--check` only looks
whether every text is there.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
OURS = ("vcc_infuse", "paper", "benchmarks", "tests")
PARTS = ("src", "tests", "pyproject.toml", "docs", "README.md", "examples", "tools", "paper", "benchmarks")


class Mutation(NamedTuple):
    """What is broken: `old` becomes `new` in `file`; `tests` (below tests) must notice.

    `file` is below src/vcc_infuse, or begins with paper/.
    """

    what: str
    file: str
    old: str
    new: str
    tests: str

    def path(self, tree: Path) -> Path:
        """Where the file is."""
        return (tree if self.file.startswith("paper/") else tree / "src" / "vcc_infuse") / self.file

    def mistakes(self, tree: Path) -> list[str]:
        """What is wrong with this entry of the list."""
        path = self.path(tree)
        count = path.read_text(encoding="utf-8").count(self.old) if path.exists() else 0
        wrong = [] if count == 1 else [f"{self.what}: {self.file} has the text {self.old!r} {count} times, not once"]
        missing = [word for word in self.tests.split() if not (tree / "tests" / word).exists()]
        return wrong + [f"{self.what}: there is no tests/{word}" for word in missing]


VCC, EVIDENCE = "calibrators/vcc", "calibrators/evidence"
M = Mutation
MUTATIONS = (
    # The audit's three, which had survived.
    M("VCC predicts the softmax instead of r", f"{VCC}/vcc.py",
      "torch.where(self.network_selects, self.reconstructed(probs, outputs.features), probs.amax(1))",
      "probs.amax(1)", f"{VCC}/test_calibrator.py"),
    M("RobustVCC's reconstruction predicts the softmax", f"{VCC}/robust.py",
      "set_top_confidence(probs, self.reconstructed(probs, outputs.features)).amax(1)", "probs.amax(1)",
      f"{VCC}/test_robust.py"),
    M("RobustVCC predicts without its temperature", "calibrators/hard_view_temperature.py",
      "self.temperature(outputs.logits.float())", "outputs.logits.float()", f"{VCC}/test_robust.py"),
    M("the heads are not crossed in the view score", f"{VCC}/scores.py",
      "crossed = ema_head(features.detach())", "crossed = head(features.detach())",
      f"{VCC}/test_scores.py"),
    # Calibrators.
    M("the view score compares networks under different statistics", f"{VCC}/vcc.py",
      "if outputs.at_inference:", "if True:", f"{VCC}/test_score_memory.py"),
    M("the fusion adds the confidence, as printed", f"{VCC}/scores.py",
      '1 - confidence if fusion == "corrected" else confidence', "confidence", f"{VCC}/test_fusion.py"),
    M("the interpolation is upside down", f"{VCC}/scores.py",
      "stability * (high - low) + low", "high - stability * (high - low)", f"{VCC}/test_fusion.py"),
    M("scores are not normalized by the queue", f"{VCC}/scores.py",
      "fuse(normalize_scores(some.scores, queue.scores)",
      "fuse(normalize_scores(some.scores, some.scores)", f"{VCC}/test_fusion.py"),
    M("KL is subtracted, as printed", f"{VCC}/reconstruction.py",
      "target) + kl_to_prior(mean, log_var).mean()", "target) - kl_to_prior(mean, log_var).mean()",
      f"{VCC}/test_reconstruction.py"),
    M("KL to the prior forgets the variance", f"{VCC}/reconstruction.py",
      "mean.square() + log_var.exp() - 1 - log_var", "mean.square() + log_var.exp() - 1",
      f"{VCC}/test_reconstruction.py"),
    M("z is drawn with the variance as deviation", f"{VCC}/reconstruction.py",
      "(log_var / 2).exp()", "log_var.exp()", f"{VCC}/test_paper.py"),
    M("the ensemble score is the mean entropy", f"{VCC}/scores.py",
      "return entropy(logits.softmax(1).mean(0).T)", "return entropy(logits.softmax(1).transpose(1, 2)).mean(0)",
      f"{VCC}/test_scores.py"),
    M("dropout samples are not scaled", f"{VCC}/scores.py",
      "(kept * head.weight)", "((kept > 0) * head.weight)", f"{VCC}/test_scores.py"),
    M("z does not reach the decoder", f"{VCC}/reconstruction.py",
      "hidden = hidden + F.linear(z, of_z)", "pass",
      f"{VCC}/test_reconstruction.py"),
    M("an old visit still counts", "calibrators/history.py", "(now - stamp <= self.max_age)", "(now >= stamp)",
      "calibrators/test_history.py"),
    M("the loss of VCC has no weight", f"{VCC}/vcc.py",
      "return confidence, self.weight * loss", "return confidence, loss", f"{VCC}/test_calibrator.py"),
    M("the loss of RobustVCC and of a joint VCC has no weight", f"{VCC}/vcc.py",
      "return self.weight * self.network.loss(", "return self.network.loss(", f"{VCC}"),
    M("the joint loss does not reach the classifier", f"{VCC}/vcc.py",
      "        if self.joint:\n", "        if False:\n", f"{VCC}/test_paper.py"),
    M("matching ignores the class", "calibrators/scale_matching.py",
      "return labels * _STRIDE + (values.float() * _UNIT).long()", "return (values.float() * _UNIT).long()",
      "calibrators/test_scale_matching.py"),
    M("temperature multiplies", "calibrators/temperature.py",
      "(to_float64(logits.float()) / self.temperature)", "(to_float64(logits.float()) * self.temperature)",
      "calibrators/test_temperature.py"),
    M("MMCE's kernel is too wide", "calibrators/mmce.py", "KERNEL_WIDTH = 0.4", "KERNEL_WIDTH = 4.0",
      "calibrators/test_mmce.py"),
    M("MMCE has half of its gradient", "calibrators/mmce.py",
      "len(all_confidence) / len(confidence) * (pairs - pairs.detach()) / value",
      "len(all_confidence) / len(confidence) * (pairs - pairs.detach()) / (2 * value)", "calibrators/test_mmce.py"),
    # Evidence.
    M("a head is shown its own fold", f"{EVIDENCE}/out_of_fold.py",
      "shown = self.fold[ids][:, None] != torch", "shown = self.fold[ids][:, None] >= 0 * torch",
      f"{EVIDENCE}/test_fold_heads.py"),
    M("the witness learns from pseudo labels", f"{EVIDENCE}/out_of_fold.py",
      "step.gather, batch.ids, weak[:0], strong[:0])", "step.gather, batch.ids, weak, strong)",
      f"{EVIDENCE}/test_out_of_fold.py"),
    M("labels are judged by the wrong head", f"{EVIDENCE}/out_of_fold.py",
      "self.heads.fold[ids]  #", "(self.heads.fold[ids] + 1) % self.heads.folds  #", f"{EVIDENCE}/test_out_of_fold.py"),
    M("old judgments count", f"{EVIDENCE}/out_of_fold.py",
      "recent = self.batch > self.batches - RECENT\n        return",
      "recent = self.labels >= 0\n        return", f"{EVIDENCE}/test_out_of_fold.py"),
    M("the past holds the present", f"{EVIDENCE}/evidence.py",
      "            support = self.support(step, probs, features.to(kind))\n",
      "            self.history.write(step.batch.pool_ids, probs, step.number)\n"
      "            support = self.support(step, probs, features.to(kind))\n", f"{EVIDENCE}/test_out_of_fold.py"),
    M("an image is its own neighbor", f"{EVIDENCE}/neighbors.py",
      "itself = close == some[:, None]", "itself = torch.zeros_like(close, dtype=torch.bool)",
      f"{EVIDENCE}/test_neighbors.py"),
    M("a labeled image's copy in the pool is its neighbor", f"{EVIDENCE}/neighbors.py",
      "torch.where(some < self.pool, dropped, 0)", "torch.where(some < self.pool, dropped, self.neighbors)",
      f"{EVIDENCE}/test_neighbors.py"),
    M("equal values have the highest rank", f"{EVIDENCE}/logistic.py",
      "((below + upto) / 2 + 0.5)", "(upto + 0.5)", f"{EVIDENCE}/test_logistic.py"),
    M("unknown evidence counts as none", f"{EVIDENCE}/logistic.py",
      "torch.where(scores.isnan(), scores[:1], scores).nan_to_num(0).T", "scores.nan_to_num(0).T",
      f"{EVIDENCE}/test_logistic.py"),
    M("weights may be negative", f"{EVIDENCE}/logistic.py", "at[:-1].clamp_min(0)", "at[:-1]",
      f"{EVIDENCE}/test_logistic.py"),
    M("the promise forgets the further example", f"{EVIDENCE}/logistic.py",
      "int(max_error * (len(scores) + 1) + 1e-9) - 1", "int(max_error * len(scores) + 1e-9)",
      f"{EVIDENCE}/test_logistic.py"),
    M("the softmax selects before a promise can be kept", f"{EVIDENCE}/evidence.py",
      "if step.progress < self.warmup_fraction and not self.promise:",
      "if step.progress < self.warmup_fraction:", f"{EVIDENCE}/test_evidence.py"),
    M("judgments that set a threshold had a part in their own score", f"{EVIDENCE}/evidence.py",
      "scores = cross_fitted(evidence, labels, right, folds, classes=classes)",
      "scores = self.logistic(evidence, labels)",
      f"{EVIDENCE}/test_evidence.py"),
    M("a cross-fitted model sees the row it scores", f"{EVIDENCE}/logistic.py",
      "model.fit(evidence[~inside], labels[~inside], right[~inside])", "model.fit(evidence, labels, right)",
      f"{EVIDENCE}/test_logistic.py"),
    M("labels are weighed without regard to their class", f"{EVIDENCE}/evidence.py",
      "((total + few * overall) / (count + few)).clamp_min(TINY)[labels]", "overall", f"{EVIDENCE}/test_evidence.py"),
    M("the weights of a calibrator do not reach the loss", "algorithms/base.py",
      "pseudo.loss(strong.logits, calibrated.sample_weights(batch))", "pseudo.loss(strong.logits, batch.weights)",
      "contract/test_contract.py"),
    M("the weights of a calibrator do not reach a selector", "selectors/pool.py",
      "weights=(pseudo.weights * calibrated.sample_weights(step.batch)).float(),", "weights=pseudo.weights.float(),",
      "selectors/test_pool.py"),
    # Selectors.
    M("INFUSE keeps what raises the support loss", "selectors/infuse/infuse.py",
      'return -influence if self.rank == "corrected" else influence',
      'return influence if self.rank == "corrected" else -influence',
      "selectors/infuse/test_infuse.py"),
    M("the influence has no sign", "selectors/infuse/influence.py",
      "return -alignment(direction, errors if", "return alignment(direction, errors if",
      "selectors/infuse/test_infuse.py"),
    M("Mixup forgets the partner's label", "selectors/infuse/influence.py",
      "softmax(1) - mix(truth)", "softmax(1) - truth", "selectors/infuse/test_influence.py"),
    M("the partner's feature gets no gradient", "selectors/infuse/influence.py",
      "return (self.share * gradient).index_add(0, self.partner, (1 - self.share) * gradient)",
      "return self.share * gradient",
      "selectors/infuse/test_influence.py"),
    M("the bias has no gradient", "selectors/pool.py",
      "F.pad(features, (0, 1), value=1.0)", "F.pad(features, (0, 1), value=0.0)", "selectors/infuse/test_infuse.py"),
    M("unselected examples are ranked among the others", "selectors/ranking.py",
      "np.lexsort((rows.ids, -rows.confidence, -score, ~rows.selected))",
      "np.lexsort((rows.ids, -rows.confidence, -score))", "selectors/test_ranking.py"),
    M("a batch's score counts examples without weight", "selectors/base.py",
      "scores[group].sum() / weights[group].sum().clamp(min=1e-12)", "scores[group].mean()",
      "selectors/infuse/test_infuse.py"),
    M("RobustINFUSE keeps the harmful", "selectors/infuse/robust.py",
      "rows.selected & (score < 0)", "rows.selected & (score > 0)", "selectors/infuse/test_robust.py"),
    M("RobustINFUSE counts selected and unselected together", "selectors/infuse/robust.py",
      'classes * rows.selected if self.quota == "proportional" else 0', "0", "selectors/infuse/test_robust.py"),
    M("AlignedINFUSE pushes away from the class shares", "selectors/infuse/aligned.py",
      "sum_over_classes(probs - target, weak.features", "sum_over_classes(target - probs, weak.features",
      "selectors/infuse/test_aligned.py"),
    M("AlignedINFUSE scales the rows only", "selectors/infuse/aligned.py",
      "probs * (shares / probs.mean(0).clamp_min(TINY))", "probs * shares", "selectors/infuse/test_aligned.py"),
    M("the class with the longest gradient decides", "selectors/infuse/aligned.py",
      "scale[members] = 1 / gradient_length(errors[members], features[members]).clamp_min(TINY**2)",
      "scale[members] = 1 / len(members)",
      "selectors/infuse/test_aligned.py"),
    M("AlignedINFUSE forgets the labels", "selectors/infuse/aligned.py",
      "return of_pool + sum_over_classes(labeled.logits.softmax(1) - truth, labeled.features, y)", "return of_pool",
      "selectors/infuse/test_aligned.py"),
    M("frozen parameters take part in the influence", "selectors/infuse/influence.py",
      "torch.zeros_like(v) if name in frozen else v for", "v for", "selectors/infuse/test_infuse.py"),
    M("the curvature is not damped", "selectors/infuse/influence.py",
      "return factor + damping * factor.trace()", "return factor + 0 * factor.trace()",
      "selectors/infuse/test_infuse.py"),
    M("the oracle sees the support set", "paper/oracle.py",
      "return SupportGradient(mean_gradient(errors, features), errors, weight, self._rows(pool))",
      "return super().support(pool)", "paper/test_oracle.py"),
    M("RETRIEVE steps by the mean gradient", "selectors/retrieve.py",
      "labeled.step(labeled.weight * atoms.total", "labeled.step(labeled.weight / budget * atoms.total",
      "selectors/test_retrieve.py"),
    M("RETRIEVE does not look ahead", "selectors/retrieve.py",
      "labeled.step(labeled.weight * atoms.total(best, torch.ones(len(best))))", "pass", "selectors/test_retrieve.py"),
    M("GradMatch's weights are not scaled", "selectors/gradmatch.py",
      "weights * (len(weights) / weights.sum()) if len(weights) else weights", "weights",
      "selectors/test_gradmatch.py"),
    M("EL2N keeps the smallest errors", "selectors/el2n.py",
      "chunk.errors.norm(dim=1)", "-chunk.errors.norm(dim=1)", "selectors/test_el2n.py"),
    M("INFUSE refreshes at each step of a short run", "selectors/base.py",
      "math.ceil(task.steps / intervals)", "1", "selectors/test_base.py"),
    # Algorithms.
    M("examples without weight leave the denominator", "types.py",
      "return (each if sample_weights is None else each * sample_weights).mean()",
      "return (each if sample_weights is None else each * sample_weights).sum() / self.weights.sum().clamp(min=1)",
      "test_types.py algorithms/test_fixmatch.py"),
    M("FixMatch selects below the threshold", "algorithms/fixmatch.py",
      "(calibrated.confidence >= self.threshold)", "(calibrated.confidence < self.threshold)",
      "algorithms/test_fixmatch.py"),
    M("FlexMatch records what its own threshold selects", "algorithms/flexmatch.py",
      "labels.where(confidence >= self.threshold, -1)", "labels.where(weights > 0, -1)",
      "algorithms/test_flexmatch.py"),
    M("FlexMatch's warm-up ignores the unused", "algorithms/flexmatch.py",
      "torch.maximum(learned.max(), never) if self.thresh_warmup else learned.max()", "learned.max()",
      "algorithms/test_flexmatch.py"),
    M("the low limit is a quarter", "algorithms/flexmatch.py",
      '"low_limit": lambda status: 1 / (2 - status)', '"low_limit": lambda status: 1 / (4 - 3 * status)',
      "algorithms/test_flexmatch.py"),
    M("FreeMatch's thresholds are not relative to the best class", "algorithms/freematch.py",
      "self.global_threshold * self.probs / self.probs.max()", "self.global_threshold * self.probs",
      "algorithms/test_freematch.py"),
    M("SoftMatch's Gaussian is too wide", "algorithms/softmatch.py",
      "self.variance[groups] / self.sigmas**2", "self.variance[groups]", "algorithms/test_softmatch.py"),
    M("MixMatch's targets are not sharpened", "algorithms/mixmatch.py",
      "return sharpen((probs[0] + probs[1]) / 2, self.temperature)", "return (probs[0] + probs[1]) / 2",
      "algorithms/test_mixmatch.py"),
    M("MeanTeacher's teacher uses running statistics", "algorithms/mean_teacher.py",
      "with as_in_training(step.ema):", "if True:", "algorithms/test_mean_teacher.py"),
    M("UDA does not sharpen", "algorithms/uda.py",
      "targets = sharpen(calibrated.probs.detach(), self.temperature)", "targets = calibrated.probs.detach()",
      "algorithms/test_uda.py"),
    M("SimMatch does not unfold by class", "algorithms/simmatch.py",
      "F.normalize(teacher * probs[:, labels], p=1, dim=1)", "teacher", "algorithms/test_simmatch.py"),
    M("sharpening multiplies by the temperature", "algorithms/ops.py",
      "return (logs / temperature).softmax(1)", "return (logs * temperature).softmax(1)", "algorithms/test_ops.py"),
    # Wrappers for long tails.
    M("Balance starts before its warm-up ends", "algorithms/imbalance/balance.py",
      "if step.progress < self.warmup_fraction:", "if False:", "algorithms/imbalance/test_balance.py"),
    M("Balance changes nothing", "algorithms/imbalance/balance.py",
      "return calibrated._replace(probs=probs, confidence=probs.amax(1))", "return calibrated",
      "algorithms/imbalance/test_balance.py"),
    M("DARP starts as late as before", "algorithms/imbalance/darp.py",
      "start_fraction: float = 0.4", "start_fraction: float = 200 / 256", "algorithms/imbalance/test_darp.py"),
    M("DARP weighs all rows alike", "algorithms/imbalance/darp.py",
      "self.entropy = -(probs * self.logs).sum(1, keepdim=True).clamp(max=-1e-9)",
      "self.entropy = torch.ones_like(probs[:, :1])", "algorithms/imbalance/test_darp.py"),
    M("DebiasPL adds the margin", "algorithms/imbalance/debiaspl.py",
      "debiased = (logits - self.margin()).softmax(1)", "debiased = (logits + self.margin()).softmax(1)",
      "algorithms/imbalance/test_debiaspl.py"),
    M("ABC keeps all of the frequent classes", "algorithms/imbalance/abc.py",
      "mask = torch.bernoulli(self.keep_rates[batch.y])", "mask = torch.ones_like(self.keep_rates[batch.y])",
      "algorithms/imbalance/test_abc.py"),
    M("Adsh changes the head class's threshold", "algorithms/adsh.py",
      "lowest.where((kept > 0) & others, self.thresholds)", "lowest.where(kept > 0, self.thresholds)",
      "algorithms/test_adsh.py"),
    M("DASO blends the other way round", "algorithms/imbalance/daso.py",
      "weight = self.blend()[calibrated.labels][:, None]", "weight = 1 - self.blend()[calibrated.labels][:, None]",
      "algorithms/imbalance/test_daso.py"),
    # What the presets promise.
    M("self-training trusts all of a class", "algorithms/self_training.py",
      "place < quotas[labels[order]]", "place >= 0", "algorithms/test_self_training.py"),
    M("self-training believes a probe that errs like chance", "algorithms/self_training.py",
      "1 - of_chance**2", "1.0", "algorithms/test_self_training.py"),
    M("self-training doubts an uneven pool of two classes", "algorithms/self_training.py",
      "math.sqrt(len(counts) / 10)", "max(1.0, math.sqrt(len(counts) / 10))", "algorithms/test_self_training.py"),
    M("self-training takes drawn labels for a plan", "algorithms/self_training.py",
      "counts.max() <= max(counts.min() + 1, ALIKE * counts.min())", "True", "algorithms/test_self_training.py"),
    M("networks are compared by losses of modest probes", "models/linear_probe.py",
      "Validated(STRENGTHS[best], calibrated_losses(probs[best], y),", "Validated(STRENGTHS[best], losses[best],",
      "models/test_linear_probe.py"),
    M("self-training weighs a class by what the pool has of it", "algorithms/self_training.py",
      "return np.asarray(weights * (wanted / np.maximum(present, 1e-12))[labels])", "return weights",
      "algorithms/test_self_training.py"),
    M("a fit of self-training starts at nothing", "models/linear_probe.py",
      "model.coef_, model.intercept_ = (_of_second(part.numpy()) for part in start)", "",
      "algorithms/test_self_training.py"),
    M("a promise about trusted labels asks the pool alone", f"{EVIDENCE}/logistic.py",
      "kept &= (above + 1) / (shown + 1) <= max_error + 1e-9", "kept &= shown >= 0", f"{EVIDENCE}/test_logistic.py"),
    M("--preset paper has no joint forward", "training/presets.py",
      '"joint_bn": True', '"joint_bn": False', "cli/test_paper_preset.py"),
    M("MixMatch's weight on SVHN is that of CIFAR-10", "training/presets.py",
      '"svhn": {"weight": 250.0}', '"svhn": {"weight": 75.0}', "cli/test_paper_preset.py"),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutations with this word in their description or file")
    parser.add_argument("--out", type=Path, help="write the result as Markdown")
    parser.add_argument("--check", action="store_true", help="only look whether every text is in its file once")
    options = parser.parse_args()
    if wrong := mistakes(ROOT):
        sys.exit("\n".join(wrong))
    if options.check:
        print(f"each of {len(MUTATIONS)} texts is in its file once")
        return 0
    import_once()
    # Bytecode is compared by size and time in seconds: a quick change of equal length would go unnoticed.
    sys.dont_write_bytecode = True
    chosen = [m for m in MUTATIONS if options.only in m.what or options.only in m.file]
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder))
        every = sorted({word for m in chosen for word in m.tests.split()})
        if run_tests(tree, " ".join(every)):
            sys.exit("the tests fail without any mutation; mend them first")
        survivors = [mutation for mutation in chosen if not caught(tree, mutation)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations caught")
    if options.out:
        options.out.write_text(report(chosen, survivors), encoding="utf-8")
    return bool(survivors)


def mistakes(tree: Path) -> list[str]:
    """Every mistake in the list."""
    return [wrong for mutation in MUTATIONS for wrong in mutation.mistakes(tree)]


def import_once() -> None:
    """Import for all forks what would take each of them seconds."""
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch

    sys.path.insert(0, str(ROOT))  # `paper` is not installed
    import paper.grid  # noqa: F401

    torch.set_num_threads(1)


def copy_tree(folder: Path) -> Path:
    """What the tests need of the tree."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, folder / part)
    return folder


def caught(tree: Path, mutation: Mutation) -> bool:
    """Whether the tests notice the mutation; the file is put back."""
    path = mutation.path(tree)
    before, began = path.read_text(encoding="utf-8"), time.perf_counter()
    path.write_text(before.replace(mutation.old, mutation.new), encoding="utf-8")
    status = run_tests(tree, mutation.tests)
    path.write_text(before, encoding="utf-8")
    if status not in (0, 1):
        sys.exit(f"{mutation.what}: pytest ended with status {status} instead of running the tests")
    verdict = "caught" if status else "SURVIVED"
    print(f"{verdict:8} {time.perf_counter() - began:5.0f} s  {mutation.file}: {mutation.what}", flush=True)
    return bool(status)


def run_tests(tree: Path, tests: str) -> int:
    """The exit status of pytest on the copy, in a fork of this process: importing torch each time would take longer."""
    import pytest

    paths = [str(Path("tests") / word) for word in tests.split()]
    options = ["-q", "-x", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", "--no-cov"]
    if (child := os.fork()) == 0:
        status = 3
        try:
            os.chdir(tree)
            for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
                del sys.modules[name]
            sys.path[:0] = [str(tree / "src"), str(tree)]
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            status = int(pytest.main([*options, *paths]))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def report(chosen: list[Mutation], survivors: list[Mutation]) -> str:
    """A Markdown table."""
    command = shlex.join(["python", "tools/mutations.py", *sys.argv[1:]])
    lines = [f"{len(chosen) - len(survivors)} of {len(chosen)} mutations are caught by the tests named.", "",
             f"    {command}", "", "| file | mutation | tests | |", "|---|---|---|---|"]  # fmt: skip
    for each in chosen:
        verdict = "**survived**" if each in survivors else "caught"
        lines.append(f"| `{each.file}` | {each.what} | `{each.tests}` | {verdict} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
