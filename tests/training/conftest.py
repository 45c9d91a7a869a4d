"""The pools that core sets are chosen from."""

from tests.helpers.pools import data, make_pool, trained, truth

__all__ = ["data", "make_pool", "trained", "truth"]
