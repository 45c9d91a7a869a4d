"""Evidence for a pseudo label from neighbors, earlier views and heads that never saw a part of the labels."""

from .evidence import Evidence

__all__ = ["Evidence"]
