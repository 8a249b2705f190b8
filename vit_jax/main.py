"""The training verb in its classic shape: python -m vit_jax.main --config=... --workdir=..."""

import sys

from vit_jax.cli import run_verb, train
from vit_jax.startup import keep_compiled, use_huge_pages

if __name__ == "__main__":
    keep_compiled()
    use_huge_pages()
    sys.exit(run_verb(train, sys.argv[1:]))
