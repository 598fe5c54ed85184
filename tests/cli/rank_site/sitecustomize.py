"""Imported first by every interpreter that has this folder in PYTHONPATH: what a test changes in
the ranks of a group. The supervisor is left as it is.
"""

import os
import sys

if "OMLX_TEST_RANKS" in os.environ and {"stage", "--lead"} & set(sys.orig_argv):
    from tests.cli.changed_rank import install

    install(os.environ["OMLX_TEST_RANKS"], follows="stage" in sys.orig_argv)
