"""The global batch is a function of (seed, step), whoever makes it."""

import functools
import multiprocessing
import os
import signal
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.data.images import jpeg, photo, write
from vit_jax.data.batches import (
    NONE_REPLACED,
    eval_batches,
    host_batches,
    local_rows,
    on_device,
    train_batches,
)
from vit_jax.data.prepare import prepare
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError


class Numbers:
    """Example i is an image full of i % 251, labelled i."""

    name = "numbers"
    class_names = ()
    num_classes = 10**9

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image = np.full((8, 8, 3), index % 251, np.uint8)
        return {"image": image, "label": np.array(index, np.int32)}


def batches(length=100, batch_size=8, seed=0, **options):
    return train_batches(
        Numbers(length), batch_size=batch_size, image_size=(8, 8), seed=seed, **options
    )


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("crop", ["resize", "inception"])
def test_any_number_of_hosts_makes_the_same_global_batch(hosts, crop):
    whole, part = batches(crop=crop), 8 // hosts
    hosts_parts = [
        batches(crop=crop, rows=range(host * part, (host + 1) * part)) for host in range(hosts)
    ]
    for step in (0, 5, 1234):
        joined = [dataset[step] for dataset in hosts_parts]
        for key in ("image", "label"):
            made = np.concatenate([batch[key] for batch in joined])
            np.testing.assert_array_equal(made, whole[step][key])


def test_an_epoch_is_a_permutation_and_the_next_one_is_another():
    epochs = [
        np.concatenate([batches(length=96)[epoch * 12 + n]["label"] for n in range(12)])
        for epoch in range(2)
    ]
    for epoch in epochs:
        assert sorted(epoch) == list(range(96))
    assert list(epochs[0]) != list(epochs[1])


def test_the_seed_changes_the_order():
    assert list(batches(seed=0)[0]["label"]) != list(batches(seed=1)[0]["label"])


def test_starting_late_in_a_huge_data_set_takes_no_time():
    started = time.perf_counter()
    labels = batches(length=300_000_000)[1_000_000]["label"]
    assert time.perf_counter() - started < 1
    assert len(set(labels)) == 8


def test_device_batches_start_anywhere_and_lie_across_the_mesh():
    sharding = NamedSharding(Mesh(jax.devices(), "d"), P("d"))
    stream = on_device(batches(), sharding, 8, start=7)
    first, second = next(stream), next(stream)
    stream.close()
    np.testing.assert_array_equal(first["image"], batches()[7]["image"])
    np.testing.assert_array_equal(second["label"], batches()[8]["label"])
    assert first["image"].sharding == sharding
    assert first["image"].addressable_shards[0].data.shape == (1, 8, 8, 3)


def test_a_host_makes_only_the_rows_of_its_devices():
    everywhere = NamedSharding(Mesh(jax.devices(), "d"), P("d"))
    assert local_rows(everywhere, 16) == list(range(16))
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert local_rows(one, 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("length", [1, 8, 13])
def test_evaluation_sees_every_example_once(length):
    dataset = eval_batches(Numbers(length), batch_size=8, image_size=(8, 8))
    seen = [
        label
        for number in range(len(dataset))
        for label, mask in zip(dataset[number]["label"], dataset[number]["mask"], strict=True)
        if mask
    ]
    assert seen == list(range(length))
    assert all(len(dataset[number]["label"]) == 8 for number in range(len(dataset)))


class SomeBad(Numbers):
    """Examples 3, 4 and 50 cannot be read."""

    def __getitem__(self, index):
        if index in (3, 4, 50):
            return {"image": b"no image", "label": np.array(index, np.int32)}
        return super().__getitem__(index)

    def where(self, index):
        return f"number {index}"


def bad_batches(on_bad_image, length=100, **options):
    return train_batches(
        SomeBad(length),
        batch_size=10,
        image_size=(8, 8),
        seed=0,
        on_bad_image=on_bad_image,
        **options,
    )


def epoch(dataset, steps=10):
    made = [dataset[step] for step in range(steps)]
    return {key: np.concatenate([batch[key] for batch in made]) for key in made[0]}


def test_a_bad_image_is_replaced_always_by_the_same_other():
    rows, again = epoch(bad_batches("skip")), epoch(bad_batches("skip"))
    for key, values in rows.items():
        np.testing.assert_array_equal(values, again[key])
    replaced = rows["replaced"] != NONE_REPLACED
    assert sorted(rows["replaced"][replaced]) == [3, 4, 50]
    assert set(rows["label"]) == set(range(100)) - {3, 4, 50}
    parts = [bad_batches("skip", rows=range(5 * host, 5 * host + 5)) for host in range(2)]
    joined = np.concatenate([part[step]["label"] for step in range(10) for part in parts])
    np.testing.assert_array_equal(joined, rows["label"])


def test_a_bad_image_ends_the_run_where_that_is_asked_for():
    with pytest.raises(UsageError, match=r"cannot read the image number \d+: it is no image of"):
        epoch(bad_batches("raise"))
    with pytest.raises(UsageError, match="'ignore': expected one of skip, raise"):
        bad_batches("ignore")


def test_a_bad_image_is_an_error_when_it_is_evaluated():
    with pytest.raises(UsageError, match=r"cannot read the image number 3: "):
        eval_batches(SomeBad(100), batch_size=10, image_size=(8, 8))[0]


def test_a_run_that_must_not_end_leaves_it_out_of_its_evaluation(caplog):
    found = eval_batches(SomeBad(100), batch_size=10, image_size=(8, 8), on_bad_image="skip")[0]
    assert found["mask"].tolist() == [1, 1, 1, 0, 0, 1, 1, 1, 1, 1]
    assert "left out: cannot read the image number 3" in caplog.text


def test_where_nothing_can_be_read_the_search_ends():
    class AllBad(SomeBad):
        def __getitem__(self, index):
            return {"image": b"", "label": np.array(0)}

    with pytest.raises(UsageError, match=r"100 images, chosen at random, cannot be read"):
        train_batches(AllBad(100), batch_size=2, image_size=(8, 8), seed=0, on_bad_image="skip")[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_put_together_from_its_chunks(workers):
    dataset = batches(batch_size=40, length=1000)  # two chunks and a half
    stream = host_batches(dataset, start=3, workers=workers, threads=2)
    for step in range(3, 6):
        made = next(stream)
        for key, values in dataset[step].items():
            np.testing.assert_array_equal(made[key], values)
    stream.close()


def test_workers_that_die_are_told_of_and_replaced(caplog):
    dataset = batches(batch_size=40, length=1000)
    before = set(multiprocessing.active_children())
    stream = host_batches(dataset, workers=2)
    made = [next(stream)]
    victim = (set(multiprocessing.active_children()) - before).pop()
    os.kill(victim.pid, signal.SIGKILL)
    made += [next(stream) for _ in range(30)]
    stream.close()
    for step, batch in enumerate(made):
        np.testing.assert_array_equal(batch["image"], dataset[step]["image"])
    assert "data worker died at step" in caplog.text and "exit code -9" in caplog.text


def test_workers_that_keep_dying_end_the_run():
    class Deadly(Numbers):
        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGKILL)

    dataset = train_batches(Deadly(10), batch_size=2, image_size=(8, 8), seed=0)
    with pytest.raises(UsageError, match=r"data workers died 4 times.*use fewer data.workers"):
        next(host_batches(dataset, workers=1))


def test_a_prepared_folder_gives_the_same_batches_to_any_hosts_and_workers(tmp_path):
    for seed in range(60):
        folder = tmp_path / "in" / "train" / f"class{seed % 3}"
        write(folder / f"{seed}.jpg", jpeg(photo(seed=seed)))
    source = open_source(str(tmp_path / "in"), "train", 32)
    prepare({"train": source}, tmp_path / "out", shard_size=16)

    def read(rows=None):
        return train_batches(
            open_source(str(tmp_path / "out"), "train", 32),
            batch_size=32, image_size=(16, 16), seed=5, crop="inception", rows=rows,
        )  # fmt: skip

    whole = [read()[step] for step in range(8)]
    for hosts in (2, 4):
        part = 32 // hosts
        for host in range(hosts):
            rows = range(host * part, (host + 1) * part)
            for step in (0, 7):
                made = read(rows)[step]
                np.testing.assert_array_equal(made["image"], whole[step]["image"][rows])
    # Two hosts of two workers each, one of which is killed; resumed at step 5 by one host.
    before = set(multiprocessing.active_children())
    streams = [host_batches(read(range(h * 16, h * 16 + 16)), workers=2) for h in range(2)]
    made = [[next(stream) for stream in streams]]
    victim = (set(multiprocessing.active_children()) - before).pop()
    os.kill(victim.pid, signal.SIGKILL)
    made += [[next(stream) for stream in streams] for _ in range(4)]
    for stream in streams:
        stream.close()
    for step, parts in enumerate(made):
        joined = np.concatenate([part["image"] for part in parts])
        np.testing.assert_array_equal(joined, whole[step]["image"])
    resumed = host_batches(read(), start=5)
    for step in range(5, 8):
        np.testing.assert_array_equal(next(resumed)["image"], whole[step]["image"])
    resumed.close()


@pytest.mark.parametrize("label", [2, -1, [0, 2], [-2, 0]])
def test_a_label_that_is_no_class_is_named(label):
    class Wrong(Numbers):
        num_classes = 2

        def __getitem__(self, index):
            image = super().__getitem__(index)["image"]
            return {"image": image, "label": np.array(label, np.int32)}

    for make in (functools.partial(train_batches, seed=0), eval_batches):
        batches = make(Wrong(4), batch_size=2, image_size=(8, 8))
        with pytest.raises(UsageError, match=r"numbers\[\d\] has the label .* class from 0 to 1"):
            batches[0]
