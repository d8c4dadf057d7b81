"""``python -m surge`` is the ``surge`` command."""

import sys

from surge.cli import main

sys.exit(main())
