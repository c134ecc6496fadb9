"""The mean of readers that were trained from the same encoder, weight by weight: a model soup.

    python benchmarks/mean_of_readers.py --readers A/model B/model --out MEAN

Readers that start alike and see their rows in another order end near each other, and their mean
reads better than each (Wortsman et al., arXiv:2203.05482). `condensery train oscar --reader MEAN`
starts from it.
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def mean(readers: list[Path], out: Path) -> None:
    """Write the mean of the readers' weights, with the first one's configuration and tokenizer."""
    states = [load_file(folder / WEIGHTS) for folder in readers]
    first = states[0]
    for folder, state in zip(readers, states, strict=True):
        odd = sorted(first.keys() ^ state.keys())
        odd += [name for name in first if name in state and first[name].shape != state[name].shape]
        if odd:
            raise SystemExit(f"{folder}: not the layers of {readers[0]}: {odd[:3]}")
    shutil.copytree(readers[0], out)
    means = {
        name: torch.stack([state[name].float() for state in states]).mean(0).to(first[name].dtype)
        for name in first
    }
    save_file(means, out / WEIGHTS, metadata={"format": "pt"})


def main() -> None:
    """Read the command line and write the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    args = parser.parse_args()
    mean(args.readers, args.out)


if __name__ == "__main__":
    main()
