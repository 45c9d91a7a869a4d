"""Names kept on disk: millions of them need eight bytes of memory each, not a string."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import IO


class Names:
    """A growing list of names in a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self._ends = file, array("q", [0])

    def extend(self, names: Iterable[str]) -> None:
        """Write down some names."""
        self.file.seek(self._ends[-1])
        for name in names:
            data = name.encode("utf-8", "surrogateescape")
            self.file.write(data)
            self._ends.append(self._ends[-1] + len(data))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> str:
        if not 0 <= place < len(self):
            raise IndexError(place)
        self.file.seek(self._ends[place])
        return self.file.read(self._ends[place + 1] - self._ends[place]).decode("utf-8", "surrogateescape")
