"""Imported first by every interpreter that has this folder in PYTHONPATH: lets the device of a
server fail, as `tests.soak.failing` says.
"""

import os
import sys

if "OMLX_TEST_DEVICE" in os.environ and "serve" in sys.orig_argv:
    from tests.soak.failing import install

    install(os.environ["OMLX_TEST_DEVICE"])
