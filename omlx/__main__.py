"""Entry point of `python -m omlx`."""

from omlx.cli.main import entry

if __name__ == "__main__":
    entry()
