"""`python -m vcc_infuse` is the command line; torchrun and `accelerate launch` start it in this way."""

from __future__ import annotations

import sys

from .cli.main import main

sys.exit(main())
