"""`python -m omlx.bench engine --model DIR`: the same as `omlx bench engine`; `spec` likewise."""

import argparse
import sys

from omlx.bench.cli import add_arguments, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m omlx.bench", description="Measure the engine.")
    add_arguments(parser)
    sys.exit(run(parser.parse_args()))
