"""No step waits for the device: on a GPU, reading a number of a tensor stops the program until all work is done."""

import copy

import pytest
import torch
from tests.helpers.every import ALGORITHMS, CALIBRATORS, few_digits, lively, name, trainer
from torch.utils._python_dispatch import TorchDispatchMode

from vcc_infuse import VCC, FixMatch, FlexMatch, LabelSpreading, LinearProbe, MixMatch, ReMixMatch, SmallConv
from vcc_infuse.calibrators import scale_matching
from vcc_infuse.utils.ring_buffer import ClassMemory

aten = torch.ops.aten
READS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten._unique2, aten.bincount}
COPIES = ("tolist", "numpy", "cpu")
# No training step; the one number of mixup, drawn on the CPU.
EXEMPT = {LinearProbe, LabelSpreading, MixMatch, ReMixMatch}
RARELY = 50  # steps between refits, which may wait


class WaitError(AssertionError):
    pass


class NoSync(TorchDispatchMode):
    """Refuses operations whose result, or its shape, the CPU must know; `host` are numbers that never leave the CPU."""

    def __init__(self, *host):
        super().__init__()
        self.host = list(host)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        packet = function.overloadpacket
        known = any(args[0] is each for each in self.host) if args else False
        if packet in READS and not known:
            raise WaitError(str(function))
        if packet in (aten.index, aten.index_put, aten.index_put_) and self.by_mask(*args):
            raise WaitError(f"{function} with a mask")
        result = function(*args, **(kwargs or {}))
        if known and isinstance(result, torch.Tensor):
            self.host.append(result)
        return result

    @staticmethod
    def by_mask(tensor, indices, values=None, *_):
        masks = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
        return masks and (values is None or values.numel() > 1)  # a single value is filled in without counting


@pytest.fixture
def no_copies(monkeypatch):
    """Patch what reads memory without an operation; call the result when the step begins."""

    def forbid():
        for each in COPIES:
            monkeypatch.setattr(torch.Tensor, each, refuse(each))
        monkeypatch.setattr(scale_matching, "in_order", lambda values: values.sort().values)  # as on a GPU
        # On a GPU it does not look at the classes, on a CPU it does.
        monkeypatch.setattr(torch.nn.functional, "one_hot", lambda y, n: (y[:, None] == torch.arange(n)).long())

    yield forbid
    monkeypatch.undo()


def refuse(method):
    def raise_it(*_, **__):
        raise WaitError(method)

    return raise_it


def step_without_sync(run, forbid, number=3):
    """One whole step under the mode; the batch is made before, because its rows are drawn on the CPU."""
    batch = run.batches_.at(number)
    run.batches_.at = lambda _: batch
    forbid()
    with NoSync(run.state_.ema.n_averaged):
        run.train_step(number)


def prepared(case, **options):
    for part in case:
        if hasattr(part, "every") and not isinstance(part, VCC):  # whose every step must not wait
            part.every = RARELY
    run = trainer(SmallConv(4), copy.deepcopy(case), steps=100, **options)
    run.prepare(few_digits())
    for number in range(3):
        run.train_step(number)
    return run


@pytest.mark.parametrize("kind", [kind for kind in ALGORITHMS if kind not in EXEMPT], ids=name)
def test_algorithm(kind, no_copies):
    step_without_sync(prepared((lively(kind), None, None)), no_copies)


@pytest.mark.parametrize("kind", CALIBRATORS, ids=name)
def test_calibrator(kind, no_copies):
    step_without_sync(prepared((lively(FlexMatch), lively(kind), None)), no_copies)


def test_lazy_views_are_the_declared_exception(no_copies):
    with pytest.raises(WaitError, match="nonzero|mask|cpu"):
        step_without_sync(prepared((lively(FixMatch), None, None), lazy=True), no_copies)


@pytest.mark.parametrize("read", [lambda x: x.sum().item(), lambda x: bool(x[0]), lambda x: x[x > 0], torch.nonzero,
                                  lambda x: x.tolist(), lambda x: float(x.mean())])  # fmt: skip
def test_the_mode_notices(read, no_copies):
    x = torch.arange(3.0)
    no_copies()
    with pytest.raises(WaitError), NoSync():
        read(x)


def test_class_memory_of_a_batch_larger_than_itself(no_copies):
    memory, rows, labels = ClassMemory(2, 3, 1), torch.arange(8.0)[:, None], torch.tensor([0, 0, 0, 0, 0, 1, 0, 1])
    no_copies()
    with NoSync():
        memory.push(rows, labels)
    assert sorted(memory.rows[0, :, 0]) == [3, 4, 6]
