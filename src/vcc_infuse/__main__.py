"""`python -m vcc_infuse` is the command line; torchrun and `accelerate launch` start it in this way."""

import os
import sys
from contextlib import suppress

# Python puts the working directory first on the path of `-m`, so that a file there would stand for any package that is
# imported later. It stays, as the last place, only if this package itself is there.
with suppress(FileNotFoundError):  # the working directory was deleted: `main` says so
    if sys.path and os.path.realpath(sys.path[0] or ".") == os.path.realpath("."):
        here = sys.path.pop(0)
        if os.path.realpath(here) == os.path.dirname(os.path.dirname(os.path.realpath(__file__))):
            sys.path.append(here)

from .cli.main import main

sys.exit(main())
