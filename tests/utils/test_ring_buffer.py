from collections import deque

import pytest
import torch

from vcc_infuse.utils.ring_buffer import ClassMemory, RingBuffer


def columns():
    return {"value": ((2,), torch.float32), "label": ((), torch.long)}


@pytest.mark.parametrize("sizes", [[1, 1, 1], [3, 4, 2, 5], [7], [12, 3]])
def test_memory_holds_the_last_rows_like_a_deque(sizes):
    memory, expected, count = RingBuffer(5, columns()), deque(maxlen=5), 0
    for size in sizes:
        labels = torch.arange(count, count + size)
        memory.push(value=torch.stack([labels, -labels], 1).float(), label=labels)
        expected.extend(labels.tolist())
        count += size
    assert memory.filled == len(expected)
    assert sorted(memory["label"][memory.valid].tolist()) == sorted(expected)
    kept = memory["label"][memory.valid]
    assert torch.equal(memory["value"][memory.valid], torch.stack([kept, -kept], 1).float())


def test_a_restored_memory_continues_at_the_same_position():
    a, b = RingBuffer(4, columns()), RingBuffer(4, columns())
    a.push(value=torch.ones(3, 2), label=torch.tensor([1, 2, 3]))
    b.load_state_dict(a.state_dict())
    for memory in (a, b):
        memory.push(value=torch.zeros(2, 2), label=torch.tensor([4, 5]))
    assert torch.equal(a["label"], b["label"])
    assert a["label"].tolist() == [5, 2, 3, 4]


def test_class_memory_follows_a_slow_loop():
    torch.manual_seed(0)
    memory, queues = ClassMemory(3, 4, 2), [[], [], []]
    for size in (3, 12, 1, 7):
        rows, labels = torch.randn(size, 2), torch.randint(2, (size,))
        memory.push(rows, labels)
        for row, label in zip(rows, labels, strict=True):
            queues[label] = [*queues[label], row][-4:]
    for c in range(2):
        torch.testing.assert_close(memory.means()[c], torch.stack(queues[c]).mean(0))
    assert memory.known.tolist() == [True, True, False]
