"""Eight virtual CPU devices for every test, so that meshes are real."""

import os
import pathlib

# Read by JAX when it is imported, and by the processes that tests start. libtpu is installed for
# its compiler only. Tests spend their time compiling small programs, many of them more than once.
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1",
    "JAX_COMPILATION_CACHE_DIR": str(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "HF_ENDPOINT": "http://127.0.0.1:9",  # nothing answers there: tests need no network
}

# Hundreds of processes are started here: none should compile Python that another has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """The user's own is left alone."""
    os.environ["VIT_JAX_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def bucket_server():
    """Where gs:// is, for this process and for those that it starts, from the first use on."""
    from tests.bucket_server import BucketServer

    with BucketServer() as server:
        os.environ |= server.environment
        yield server


@pytest.fixture
def bucket(bucket_server):
    """A new one, empty: its name as in gs://bucket-1."""
    name = f"bucket-{len(bucket_server.objects)}"
    bucket_server.objects[name] = {}
    yield f"gs://{name}"
    bucket_server.refuse = lambda method, bucket, name: None


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory):
    """The folder of a finished run of a few steps on digits; not to be changed."""
    from tests.train.small_run import small_config
    from vit_jax.train.config import run_config
    from vit_jax.train.loop import train

    workdir = tmp_path_factory.mktemp("trained_run")
    train(run_config(small_config(total="3 steps")), workdir)
    return workdir
