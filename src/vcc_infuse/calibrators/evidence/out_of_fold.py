"""Predictions for labeled images by heads that were not shown their labels, from which the weights are learned."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...types import Outputs, Step
from ...utils.device import product
from ..history import History, Visit
from .logistic import NormalScores, log_odds
from .neighbors import FeatureMemory, support_of

THRESHOLD = 0.95  # of the pseudo labels that a head learns from
RIDGE = 1.0  # strength where heads start, in mean squared lengths of a row
TINY = 1e-6
MOST_LABELS = 1024  # for which heads start at a regression; with more they learn fast enough from zero


class FoldHeads(nn.Module):
    """One linear head per fold of the labels, trained on those of all other folds and on its own confident predictions.

    A classifier is right on the labels it was trained on, which proves nothing; these heads are unbiased on their fold.
    If the network is trained too, its features have seen all labels, and only the last layer is out of fold. A label's
    fold is decided when it is first seen, in turns within its class; labels of one of the `groups`, (labeled,), share
    one.
    """

    def __init__(self, classes: int, width: int, *, labeled: int, folds: int, groups: Tensor | None = None) -> None:
        super().__init__()
        self.groups = nn.Buffer(torch.arange(labeled) if groups is None else groups.clone(), persistent=False)
        self.classes = classes
        self.folds = folds
        self.linear = nn.Linear(width, folds * classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.fold = nn.Buffer(torch.full((labeled,), -1))
        self.counts = nn.Buffer(torch.zeros(classes, dtype=torch.long))

    def forward(self, features: Tensor) -> Tensor:
        """Logits (batch, folds, classes) of features (batch, width)."""
        logits = product(features, self.linear.weight, self.linear.bias)
        return logits.view(features.shape[0], self.folds, self.classes)  # len() would be a constant in an export

    def probs(self, features: Tensor) -> Tensor:
        """Probabilities (batch, folds, classes); computed with the batch last, as a CPU wants a softmax."""
        logits = F.linear(self.linear.weight.to(features.dtype), features).float() + self.linear.bias[:, None]
        return logits.view(self.folds, self.classes, -1).softmax(1).permute(2, 0, 1)

    @torch.no_grad()
    def start(self, features: Tensor, y: Tensor, pool: Tensor, logits: Tensor, known: float) -> None:
        """Start each head at a ridge regression on the labels that it may see, as sharp as the classifier.

        A classifier that starts at a probe knows its labels from the first step on. Heads that start at zero never
        catch up with it, and what they say is no measure of what the classifier knows.

        Args:
            features: (labeled, width), of all labeled images.
            y: (labeled,), their labels.
            pool: (rows, width), features of pool rows.
            logits: (rows, classes), what the classifier says about these.
            known: share of the labeled images that the classifier gets right. One that is behind the regressions on
                labels which these do not see has not started at a probe, and the heads stay where they are.
        """
        targets = F.one_hot(y, self.classes).to(features)
        fits = [ridge(features[self.fold != fold], targets[self.fold != fold]) for fold in range(self.folds)]
        weight = torch.stack([fit[0] for fit in fits])
        bias = torch.stack([fit[1] for fit in fits])
        honest = torch.einsum("nw,ncw->nc", features, weight[self.fold]) + bias[self.fold]
        if known < (honest.argmax(1) == y).float().mean():
            return
        answers = torch.einsum("nw,fcw->fnc", pool, weight) + bias[:, None]
        scale = (spread(logits) / spread(answers).clamp_min(1e-12)).sqrt().view(-1, 1, 1)
        self.linear.weight.copy_((scale * weight).flatten(0, 1))
        self.linear.bias.copy_((scale[..., 0] * bias).flatten())

    @torch.no_grad()
    def assign(self, ids: Tensor, y: Tensor) -> None:
        """Decide the folds of labels that have none yet."""
        for row in (self.fold[ids] < 0).nonzero()[:, 0].tolist():
            if self.fold[ids[row]] < 0:  # an image can be twice in a batch
                self.fold[self.groups == self.groups[ids[row]]] = self.counts[y[row]] % self.folds
                self.counts[y[row]] += 1

    def loss(
        self, labeled: Tensor, y: Tensor, gather: Callable[[Tensor], Tensor], ids: Tensor, weak: Tensor, strong: Tensor
    ) -> Tensor:
        """Cross entropy of the labels outside the fold, and of strong views with a head's own pseudo labels.

        The inputs are features; `weak` and `strong` are of the same pool rows. Means are over whole batches, so that
        several processes can average them.
        """
        self.assign(gather(ids), gather(y))
        logits = self(torch.cat([labeled, strong]))
        shown = self.fold[ids][:, None] != torch.arange(self.folds, device=ids.device)
        supervised = cross_entropy(logits[: len(y)], y[:, None].expand(-1, self.folds)) * shown
        with torch.no_grad():
            confidence, pseudo = self.probs(weak).max(2)
        consistent = cross_entropy(logits[len(y) :], pseudo) * (confidence >= THRESHOLD)
        share = self.folds / (self.folds - 1)  # of the labels, one fold is hidden
        total: Tensor = share * supervised.sum() / max(1, len(y)) + consistent.sum() / max(1, len(pseudo))
        return total


def spread(logits: Tensor) -> Tensor:
    """The mean square of logits (…, rows, classes) around the mean of their row."""
    return (logits - logits.mean(-1, keepdim=True)).square().mean((-2, -1))


def ridge(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of the ridge regression of `y` (rows, outputs) on `x` (rows, width), solved in the smaller."""
    mean = x.mean(0)
    centered = x - mean
    strength = (RIDGE * centered.square().sum(1).mean()).clamp(min=TINY)  # identical images have no spread
    rows, width = x.shape
    targets = y - y.mean(0)
    if rows <= width:
        gram = centered @ centered.T + strength * torch.eye(rows, device=x.device)
        weight = torch.linalg.solve(gram, targets).T @ centered
    else:
        gram = centered.T @ centered + strength * torch.eye(width, device=x.device)
        weight = torch.linalg.solve(gram, centered.T @ targets).T
    return weight, y.mean(0) - weight @ mean


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each row and head."""
    return F.cross_entropy(logits.flatten(0, 1), targets.reshape(-1), reduction="none").view(targets.shape)


FEW = 64  # pool rows of a batch among which the heads' probabilities are ranked
RECENT = 16  # batches of labels that count: a head's older predictions date from when it knew less


class OutOfFoldRows(nn.Module):
    """The last out-of-fold prediction for each labeled image: its evidence, its label, and whether that was right.

    The witness has heads of the same folds that never see pseudo labels. `past` holds the heads' last predictions for
    the pool and, behind it, the labeled images: for each example one distribution over pairs of head and class.
    """

    def __init__(self, scores: Sequence[str], heads: FoldHeads, witness: FoldHeads | None, past: History) -> None:
        super().__init__()
        self.scores = scores
        self.heads = heads
        self.witness = witness
        self.past = past
        labeled = len(heads.fold)
        columns = 1 + len(scores)
        self.ranks = NormalScores(columns)
        self.evidence = nn.Buffer(torch.zeros(labeled, columns))
        self.log_odds = nn.Buffer(torch.zeros(labeled))
        waiting = labeled if labeled <= MOST_LABELS else 0
        self.features = nn.Buffer(torch.zeros(waiting, heads.linear.in_features))
        self.y = nn.Buffer(torch.full((waiting,), -1))
        self.known = nn.Buffer(torch.zeros(waiting, dtype=torch.bool))
        self.started = nn.Buffer(torch.tensor(waiting == 0))
        self.waiting = waiting > 0
        self.labels = nn.Buffer(torch.full((labeled,), -1))
        self.right = nn.Buffer(torch.zeros(labeled, dtype=torch.bool))
        self.batch = nn.Buffer(torch.full((labeled,), -RECENT))
        self.batches = nn.Buffer(torch.tensor(0))

    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ranked evidence, predicted labels, whether they are right, and the folds."""
        recent = self.batch > self.batches - RECENT
        return self.evidence[recent], self.labels[recent], self.right[recent], self.heads.fold[recent]

    def inference_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-odds of the head's own label beside the ranks of the other evidence, labels, and whether they are right.

        Ranks tell nothing about a better classifier than the heads, which lack labels; its log-odds do.
        """
        recent = self.batch > self.batches - RECENT
        evidence = torch.cat([self.log_odds[recent, None], self.evidence[recent, 1:]], 1)
        return evidence, self.labels[recent], self.right[recent]

    @torch.no_grad()
    def start(self, step: Step, labeled: Outputs, pool: Outputs) -> None:
        """Remember labeled images, given outputs of the batch; the heads start when all are known."""
        if self.waiting:  # asked once per process after the start, because the question makes a GPU wait
            self.waiting = not self.started
        if not self.waiting:
            return
        ids = step.gather(step.batch.ids)
        self.features[ids] = step.gather(labeled.features)
        self.y[ids] = step.gather(step.batch.y)
        self.known[ids] = step.gather(labeled.logits).argmax(1) == self.y[ids]
        if (self.y >= 0).all():
            self.heads.assign(torch.arange(len(self.y), device=ids.device), self.y)
            features, logits = (step.gather(part.detach().float()) for part in (pool.features, pool.logits))
            self.heads.start(self.features, self.y, features, logits, self.known.float().mean().item())
            self.started.fill_(True)

    def loss(self, step: Step, labeled: Tensor, weak: Tensor, strong: Tensor) -> Tensor:
        """The loss of all heads, given the features of a batch."""
        batch = step.batch
        loss = self.heads.loss(labeled, batch.y, step.gather, batch.ids, weak, strong)
        if self.witness is None:
            return loss
        return loss + self.witness.loss(labeled, batch.y, step.gather, batch.ids, weak[:0], strong[:0])

    @torch.no_grad()
    def observe(self, step: Step, memory: FeatureMemory, pool: Tensor, labeled: Tensor) -> None:
        """Store the heads' predictions for a batch, given the features of its pool rows and labeled images."""
        pool_ids = step.gather(step.batch.pool_ids)
        ids = step.gather(step.batch.ids)
        y = step.gather(step.batch.y)
        pool = step.gather(pool)
        labeled = step.gather(labeled)
        places = memory.pool + ids
        memory.write(places, labeled)
        everything = torch.cat([pool, labeled.to(pool.dtype)])
        everywhere = torch.cat([pool_ids, places])
        all_probs = self.heads.probs(everything)
        probs = all_probs[len(pool) :]
        some = torch.cat([torch.arange(len(pool))[:FEW], len(pool) + torch.arange(len(ids))]).to(ids.device)
        support = self._support(all_probs[some], everything[some], memory, everywhere[some], step.number)
        self.ranks.observe(support[: -len(ids)].flatten(0, 1))
        hidden = torch.arange(len(ids), device=ids.device), self.heads.fold[ids]  # the head not shown the label
        support = support[-len(ids) :][hidden]
        self.evidence[ids] = self.ranks(support)
        self.log_odds[ids] = log_odds(support[:, 0])
        self.labels[ids] = probs[hidden].argmax(1)
        self.right[ids] = self.labels[ids] == y
        self.batches.add_(1)
        self.batch[ids] = self.batches
        self.past.write(everywhere, all_probs.flatten(1) / self.heads.folds, step.number)

    def _support(self, probs: Tensor, features: Tensor, memory: FeatureMemory, places: Tensor, now: int) -> Tensor:
        """The probability of each head's label by itself and by the other evidence: (rows, heads, columns)."""
        _, folds, classes = probs.shape
        own, labels = probs.max(2)
        pairs = labels + classes * torch.arange(folds, device=labels.device)  # the past is of pairs of head and class
        visits = []
        for score in self.scores:
            if score == "neighbors":
                joint = memory.mean_prediction(places, pairs, self.past, now)
            elif score == "visits" or self.witness is None:
                past = self.past.read_classes(places[:, None], pairs, now)
                joint = Visit(past.probs[..., 0], past.known[:, 0])
            else:
                witness = self.witness.probs(features).gather(2, labels[..., None])[..., 0]
                joint = Visit(witness / folds, torch.ones_like(places, dtype=torch.bool))
            visits.append(Visit(joint.probs * folds, joint.known))
        return support_of(own, *visits)
