"""The pools that selectors choose from."""

from tests.helpers.pools import data, eval_mode, make_pool, trained, truth

__all__ = ["data", "eval_mode", "make_pool", "trained", "truth"]
