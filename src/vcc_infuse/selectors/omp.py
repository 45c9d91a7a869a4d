"""Orthogonal matching pursuit with non-negative weights, from inner products alone (Batch-OMP).

This is the active-set method of Lawson & Hanson (1974), stopped when enough atoms are active. Each round adds the atom
most aligned with the residual and solves for all weights again; an atom whose weight would turn negative is removed.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Pursuit:
    """min ‖b − A x‖² + λ‖x‖² over x ≥ 0, given gram = AᵀA and target = Aᵀb."""

    def __init__(self, gram: Tensor, target: Tensor, budget: int, ridge: float = 0.0) -> None:
        self.gram, self.target, self.ridge = gram.double(), target.double(), ridge
        size = min(budget, len(target))
        self.index = torch.zeros(size, dtype=torch.long)
        self.factor = torch.zeros(size, size, dtype=torch.float64)
        self.rows = torch.zeros(size, len(target), dtype=torch.float64)
        self.x = torch.zeros(0, dtype=torch.float64)
        self.spanned = torch.zeros(len(target), dtype=torch.bool)

    def run(self, tolerance: float = 1e-9) -> tuple[Tensor, Tensor]:
        """Atoms and their positive weights; fewer than the budget if no other atom is aligned with the residual."""
        floor = tolerance * float(self.target.abs().amax()) if len(self.target) else 0.0
        barred = self.spanned.clone()
        for _ in range(
            4 * len(self.index) + len(self.target)
        ):  # a bound, since rounding could make two atoms alternate
            if len(self.x) == len(self.index):
                break
            pull = self.target - self.x @ self.rows[: len(self.x)]
            pull[self.index[: len(self.x)]] = 0
            pull[barred | self.spanned] = 0
            value, atom = pull.max(0)
            if value <= floor:
                break
            if self._add(int(atom)):
                barred.zero_()
            else:
                barred[atom] = True  # until the set changes, or it would be tried forever
        return self.index[: len(self.x)].clone(), self.x.clone()

    def _add(self, atom: int) -> bool:
        """Add an atom and solve; False if the atom does not stay."""
        if not self._grow(atom):
            self.spanned[atom] = True
            return False
        self.x = torch.cat([self.x, torch.zeros(1, dtype=torch.float64)])
        while len(self.x):
            best = self._solve()
            falling = best <= 0
            if not falling.any():
                self.x = best
                break
            ratio = torch.where(falling, self.x / (self.x - best).clamp(min=1e-300), torch.inf)
            self.x = self.x + ratio.min() * (best - self.x)
            stay = ~falling | (ratio > ratio.min())
            self._restrict(stay)
        return atom in self.index[: len(self.x)].tolist()

    def _grow(self, atom: int) -> bool:
        """Append one row to the Cholesky factor; False if the atom already lies in the span."""
        count = len(self.x)
        cross = self.gram[self.index[:count], atom][:, None]
        row = torch.linalg.solve_triangular(self.factor[:count, :count], cross, upper=False)[:, 0]
        whole = self.gram[atom, atom] + self.ridge
        pivot = whole - row @ row
        if pivot <= 1e-12 * whole:
            return False
        self.factor[count, :count], self.factor[count, count] = row, pivot.sqrt()
        self.index[count], self.rows[count] = atom, self.gram[atom]
        return True

    def _solve(self) -> Tensor:
        count = len(self.x)
        right = self.target[self.index[:count]][:, None]
        return torch.cholesky_solve(right, self.factor[:count, :count])[:, 0]

    def _restrict(self, stay: Tensor) -> None:
        """Remove atoms and factorize the rest."""
        kept = self.index[: len(self.x)][stay]
        count = len(kept)
        self.x, self.index[:count], self.rows[:count] = self.x[stay], kept, self.gram[kept]
        self.spanned.zero_()
        inner = self.gram[kept][:, kept] + self.ridge * torch.eye(count, dtype=torch.float64)
        self.factor.zero_()
        self.factor[:count, :count] = torch.linalg.cholesky(inner)
