"""``python -m training.speak.export HEAD --out FILE``: a trained head, packed to be bundled."""

from __future__ import annotations

import argparse
from pathlib import Path

import mlx.core as mx

GROUP_SIZE = 64


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.speak.export", description=__doc__)
    parser.add_argument("head", type=Path, help="head-1.safetensors of training.speak")
    parser.add_argument("--out", type=Path, required=True, help="mtp.safetensors")
    parser.add_argument("--bits", type=int, default=6, help="of matrices")
    parser.add_argument("--shortlist", type=int, help="its first ids, of which the head drafts")
    options = parser.parse_args()
    packed = {}
    for name, tensor in mx.load(str(options.head)).items():
        if tensor.ndim == 2:
            module = f"mtp.{name.removesuffix('.weight')}"
            parts = mx.quantize(tensor, group_size=GROUP_SIZE, bits=options.bits)
            for part, value in zip(("weight", "scales", "biases"), parts, strict=True):
                packed[f"{module}.{part}"] = value
        elif name == "draft_token_ids":
            packed[f"mtp.{name}"] = tensor[: options.shortlist]
        else:
            packed[f"mtp.{name}"] = tensor
    options.out.parent.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(options.out), packed, metadata={"format": "mlx"})
    options.out.chmod(0o644)


if __name__ == "__main__":
    main()
