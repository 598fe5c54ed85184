"""`python -m omlx`."""

import sys

from omlx.cli.main import main

sys.exit(main())
