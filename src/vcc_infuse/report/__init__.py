"""One self-contained page about one run or several. It reads run folders and knows nothing about methods."""

from .page import write_report

__all__ = ["write_report"]
