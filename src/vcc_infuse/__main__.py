"""`python -m vcc_infuse` is the command line, as `accelerate launch -m vcc_infuse` needs it."""

from __future__ import annotations

import sys

from .cli.main import main

sys.exit(main())
