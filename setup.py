"""Package metadata. Tool settings are in pyproject.toml; `make` installs everything."""

import pathlib

from setuptools import find_packages, setup

setup(
    name="vit_jax",
    version="0.1.0",
    description="Train Vision Transformers in JAX, from two CPU cores to TPU pods",
    long_description=pathlib.Path("README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["vit_jax", "vit_jax.*"]),
    install_requires=[
        "absl-py>=2.1",
        "array_record>=0.8",
        "cloudpickle>=3.0",
        "flax>=0.12",
        "fsspec>=2024.6",
        "grain>=0.2.12",
        "jax>=0.8",
        "matplotlib>=3.9",
        "ml_collections>=1.0",
        "numpy>=2.0",
        "opencv-python-headless>=4.11",
        "optax>=0.2.6",
        "orbax-checkpoint>=0.11.25",
        "pillow>=10.3",
        "scikit-learn>=1.5",  # carries the digits data set
        "scipy>=1.14",
        "simplejpeg>=1.8",
        "tensorboardX>=2.6",
    ],
    extras_require={
        "tpu": ["jax[tpu]"],
        "gcs": ["gcsfs"],
        "tfds": ["tensorflow-datasets>=4.9.10", "importlib_resources"],
        "hub": ["huggingface_hub>=0.30", "safetensors>=0.5"],
        "test": [
            "pyarrow>=16",  # embed --out=*.parquet
            "pytest>=8",
            "pytest-xdist>=3.6",
            "ruff>=0.9",
            "tensorflow-datasets>=4.9.10",
        ],
        "bench": [],  # peers to measure against come with the benchmarks that need them
    },
    entry_points={"console_scripts": ["vit-jax = vit_jax.cli:main"]},
)
