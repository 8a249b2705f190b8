"""The run that all others are compared with."""

import pytest

from tests.chaos.job import Job


@pytest.fixture(scope="package")
def untouched(tmp_path_factory):
    """Two processes that nobody touches; all their checkpoints are kept."""
    place = tmp_path_factory.mktemp("untouched")
    (place / "batches").mkdir()
    record = {"BATCH_RECORD": str(place / "batches")}
    with Job(place / "run", "--config.checkpoints_kept=1000", environment=record) as job:
        assert job.wait() == 0, job.story()
    return job.folder
