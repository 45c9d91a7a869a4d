"""`python -m vcc_infuse` is the command line, as `accelerate launch -m vcc_infuse` needs it."""

import sys

from .cli import main

sys.exit(main())
