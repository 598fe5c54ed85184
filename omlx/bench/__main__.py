"""`python -m omlx.bench engine --model DIR`: the same as `omlx bench engine`."""

import argparse
import sys

from omlx.bench.cli import add_arguments, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m omlx.bench", description="Measure the engine against mlx-lm.")
    add_arguments(parser)
    sys.exit(run(parser.parse_args()))
