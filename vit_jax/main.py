"""The training verb in its classic shape: python -m vit_jax.main --config=... --workdir=..."""

import sys

from vit_jax.cli import run_verb, train

if __name__ == "__main__":
    sys.exit(run_verb(train, sys.argv[1:]))
