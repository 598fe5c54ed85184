from tests.cli.inside import alone

__all__ = ["alone"]
