"""The nearest rows of many: exact in blocks, and with faiss beyond a size at which all pairs would take too long."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EXACT_UP_TO = 50_000  # rows; up to here the exact search takes seconds (results/growth/neighbors.md)
BLOCK = 128  # queries compared with all rows at a time: their similarities should fit into a cache
GROUP = 64  # columns of which only the best is looked at first
LINKS = 12  # of each row in the graph; more take memory and find hardly more
BUILD_WIDTH = 40  # rows that are looked at to place one
SEARCH_WIDTH = 64  # rows that are looked at to find the nearest of one
LANES = 16
ADDED = 2**16  # rows that are placed at a time
DIRECTIONS = 256  # in which candidates are looked for
CANDIDATES = 5  # for each row that is wanted
CANDIDATE_BLOCK = 1024  # rows whose candidates are compared in full at a time
SAMPLE = 4096  # rows that directions are taken from
PAIRS_PER_SECOND = 3e8  # of the exact search, one thread, at width 64: for an estimate


class NearestRows:
    """Finds the nearest of many rows, by Euclidean distance or, of rows of unit length, by the cosine.

    More than `exact_up_to` rows on the CPU become an HNSW graph (Malkov and Yashunin, 2016) that finds at least 95 of
    100; its time per query hardly grows. It needs the extra `faiss`; without it the search stays exact and says what
    it costs.

    Args:
        rows: of unit length if the search shall be exact, of shape (rows, width).
        exact_up_to: more rows are searched approximately.
    """

    def __init__(self, rows: Tensor, *, exact_up_to: int = EXACT_UP_TO) -> None:
        many = rows.device.type == "cpu" and use_graph(len(rows), exact_up_to)
        self.graph: Any = _graph(rows) if many else None
        self.columns = rows.float().T.contiguous() if self.graph is None else None

    def of(self, queries: Tensor, count: int) -> Tensor:
        """The numbers of the rows nearest to each query, in order, of shape (queries, count)."""
        if self.columns is not None:
            found = [_most_similar(block @ self.columns, count) for block in torch.split(queries.float(), BLOCK)]
            return torch.cat(found)
        self.graph.hnsw.efSearch = max(SEARCH_WIDTH, 2 * count)
        _, numbers = self.graph.search(_padded(queries), count)
        near = torch.from_numpy(numbers)
        return torch.where(near < 0, near[:, :1].clamp_min(0), near)  # where fewer were reached, the nearest again


def nearest_of_all(rows: Tensor, count: int) -> Tensor:
    """The nearest of all rows to each, itself included, of shape (rows, count), for more rows than can be compared.

    A graph finds candidates in the directions of most variance; their distances are compared in full.
    """
    few = _main_coordinates(rows)
    search = NearestRows(few, exact_up_to=0)
    found = []
    for part in torch.split(torch.arange(len(rows)), CANDIDATE_BLOCK):
        candidates = search.of(few[part], min(CANDIDATES * count, len(rows)))
        distance = (rows[candidates].float() - rows[part, None].float()).norm(dim=2)
        found.append(candidates.gather(1, distance.topk(count, largest=False).indices))
    return torch.cat(found)


def _main_coordinates(rows: Tensor) -> Tensor:
    """Coordinates along the directions of most variance of a sample, of shape (rows, at most 256), float16."""
    if rows.shape[1] <= DIRECTIONS:
        return rows.half()
    sample = rows[:: -(-len(rows) // SAMPLE)].float()
    center = sample.mean(0)
    basis = torch.linalg.eigh((sample - center).T @ (sample - center)).eigenvectors[:, -DIRECTIONS:]
    return torch.cat([((block.float() - center) @ basis).half() for block in torch.split(rows, ADDED)])


def _most_similar(similarity: Tensor, count: int) -> Tensor:
    """The columns of the largest values of each row, in order.

    The largest values are in the groups with the largest maxima: sorting few of them is faster than sorting all.
    """
    whole = similarity.shape[1] // GROUP * GROUP
    if whole < 4 * GROUP * count:
        return similarity.topk(count).indices
    groups = similarity[:, :whole].view(len(similarity), -1, GROUP)
    best = groups.amax(2).topk(count).indices
    inside = groups.gather(1, best[..., None].expand(-1, -1, GROUP)).flatten(1)
    columns = (best[..., None] * GROUP + torch.arange(GROUP, device=best.device)).flatten(1)
    rest = torch.arange(whole, similarity.shape[1], device=best.device).expand(len(similarity), -1)
    order = torch.cat([inside, similarity[:, whole:]], 1).topk(count).indices
    return torch.cat([columns, rest], 1).gather(1, order)


def has_graph() -> bool:
    """Whether the extra `faiss` is installed."""
    return find_spec("faiss") is not None


def use_graph(rows: int, exact_up_to: int = EXACT_UP_TO) -> bool:
    """Whether so many rows are searched approximately; without the extra `faiss` it warns of what that costs."""
    if rows <= exact_up_to or has_graph():
        return rows > exact_up_to
    minutes = rows**2 / PAIRS_PER_SECOND / 60
    warnings.warn(
        f"comparing {rows:,} images with each other takes about {minutes:.0f} minutes; "
        "pip install 'vcc-infuse[faiss]' makes it far less",
        stacklevel=3,
    )
    return False


def _graph(rows: Tensor) -> Any:
    import faiss as typed

    faiss: Any = typed  # its stubs do not know that kinds of quantizers are numbers
    graph = faiss.IndexHNSWSQ(_padded(rows[:1]).shape[1], faiss.ScalarQuantizer.QT_fp16, LINKS)
    graph.hnsw.efConstruction = BUILD_WIDTH
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # with several the graph depends on their order, and no run could be repeated
    try:
        graph.train(_padded(rows[:1]))
        for block in torch.split(rows, ADDED):
            graph.add(_padded(block))
    finally:
        faiss.omp_set_num_threads(threads)
    return graph


def _padded(rows: Tensor) -> Any:
    """Rows for faiss, with zeros up to a width that its vector instructions need: others take four times as long."""
    return F.pad(rows.float(), (0, -rows.shape[1] % LANES)).contiguous().numpy()
