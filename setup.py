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
    # configs/ and launch/ are rooms of their own in the tree, and part of the package when it is
    # installed: `vit-jax train --config=configs/demo.py` and `vit-jax launch` find them there.
    packages=[
        *find_packages(include=["vit_jax", "vit_jax.*"]),
        "vit_jax.configs",
        "vit_jax.launch",
    ],
    package_dir={"vit_jax.configs": "configs", "vit_jax.launch": "launch"},
    package_data={
        "vit_jax": ["py.typed"],
        "vit_jax.insight": ["*.css", "*.js", "vendor/uplot/*"],  # of the report
        "vit_jax.launch": ["Dockerfile", "*.sh", "*.sbatch"],
    },
    install_requires=[
        "absl-py>=2.1",
        "array_record>=0.8",
        "cloudpickle>=3.0",
        "flatbuffers>=24.3",  # jax.export writes with it
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
        "pyyaml>=6.0",  # launch/gke.py
        "safetensors>=0.5",
        "scikit-learn>=1.5",  # carries the digits data set
        "scipy>=1.14",
        "simplejpeg>=1.8",
        "tensorboardX>=2.6",
    ],
    extras_require={
        "tpu": ["jax[tpu]"],
        "cuda": ["jax[cuda12]"],
        "gcs": ["gcsfs", "google-cloud-storage"],  # Orbax wants both for gs://
        "tfds": ["tensorflow-datasets>=4.9.10", "importlib_resources"],
        "hub": ["huggingface_hub>=0.30"],
        "onnx": ["jax2onnx>=0.17", "onnxruntime>=1.20"],
        "test": [
            "kubeflow-trainer-api>=2.0",  # the schema of a JobSet
            "mypy>=1.18",
            "playwright>=1.40",  # drives a browser, which the Makefile installs
            "pyarrow>=16",  # embed --out=*.parquet
            "pytest>=8",
            "pytest-xdist>=3.6",
            "ruff>=0.9",
            "setuptools>=77",  # builds the wheel that is tested
        ],
        # Beside torch, which the Makefile installs first, and timm, whose torchvision is left out.
        "interop": ["pytest>=8", "transformers>=5"],
        # Peers to measure against. (timm's models import torchvision, which has no build for every
        # torch; where both are installed it takes part.)
        "bench": ["torch==2.13.0", "transformers>=5"],
    },
    entry_points={"console_scripts": ["vit-jax = vit_jax.cli:main"]},
)
