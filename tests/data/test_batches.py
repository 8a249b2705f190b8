"""The global batch is a function of (seed, step), whoever makes it."""

import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.data.batches import eval_batches, local_rows, on_device, train_batches


class Numbers:
    """Example i is an image full of i % 251, labelled i."""

    name = "numbers"
    class_names = ("a",)
    num_classes = 1

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
