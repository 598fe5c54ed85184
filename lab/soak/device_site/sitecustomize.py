"""Imported first by every interpreter that has this folder in PYTHONPATH: lets the device of a
server fail, as `lab.soak.failing` says.
"""

import os
import sys

if "OMLX_TEST_DEVICE" in os.environ and "serve" in sys.orig_argv:
    from lab.soak.failing import install

    install(os.environ["OMLX_TEST_DEVICE"])
