"""One self-contained page about one run or several. It reads run folders, and knows nothing of how they came about."""

from .page import write_report

__all__ = ["write_report"]
