import pytest
import torch

from surge.data import (
    HALF,
    IMAGENET,
    Augmentation,
    EpochPlan,
    ImageSet,
    ResidentLoader,
    crop_flip,
    epoch_plan,
    normalize,
)
from surge.errors import ConfigError


def image_set(count):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return ImageSet(images, torch.arange(count) % 10, tuple("0123456789"), IMAGENET)


def numbered(count):
    """Return a set whose labels tell which image is which."""
    images = torch.zeros(count, 1, 2, 2, dtype=torch.uint8)
    return ImageSet(images, torch.arange(count), ("x",), HALF)


def collect(batches):
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def training(dataset, **options):
    options = {"batch_size": 16, "shuffle": True, "augmentation": Augmentation(2)} | options
    return ResidentLoader(dataset, **options)


def test_loader_yields_the_planned_images_cropped_flipped_and_normalised():
    dataset = image_set(50)
    images, labels = collect(training(dataset, seed=3).batches(5))
    plan = epoch_plan(50, 5, 3, padding=2)
    crops = crop_flip(dataset.images[plan.permutation], plan.offsets, plan.flips, padding=2)
    assert torch.equal(images, normalize(crops, *IMAGENET.constants()))
    assert torch.equal(labels, dataset.labels[plan.permutation])


def test_loader_without_shuffle_yields_images_as_stored():
    dataset = image_set(50)
    loader = ResidentLoader(dataset, batch_size=16)
    images, labels = collect(loader)
    assert torch.equal(images, normalize(dataset.images, *IMAGENET.constants()))
    assert torch.equal(labels, dataset.labels)
    assert [len(batch) for _, batch in loader] == [16, 16, 16, 2]


def test_loader_is_the_same_for_the_same_seed_and_epoch_only():
    dataset = image_set(50)
    first = collect(training(dataset, seed=1).batches(0))[0]
    assert torch.equal(first, collect(training(dataset, seed=1).batches(0))[0])
    assert not torch.equal(first, collect(training(dataset, seed=1).batches(1))[0])
    assert not torch.equal(first, collect(training(dataset, seed=2).batches(0))[0])


@pytest.mark.parametrize("drop_last", [False, True])
def test_loader_length_is_the_number_of_batches(drop_last):
    loader = training(numbered(50), drop_last=drop_last, augmentation=None)
    batches = list(loader.batches(0))
    assert len(batches) == len(loader) == (3 if drop_last else 4)
    assert sum(len(labels) for _, labels in batches) == (48 if drop_last else 50)


def test_loader_epoch_visits_every_image_once():
    labels = collect(training(numbered(50)).batches(0))[1]
    assert sorted(labels.tolist()) == list(range(50))
    assert labels.tolist() != list(range(50))


@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_loader_started_in_the_middle_continues_the_epoch(start):
    loader = training(image_set(50))
    whole = list(loader.batches(2))
    rest = list(loader.batches(2, start=start))
    assert len(rest) == 4 - start
    for (images, labels), (more, names) in zip(whole[start:], rest, strict=True):
        assert torch.equal(images, more)
        assert torch.equal(labels, names)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_loader_slices_of_all_ranks_make_the_global_batch(world, drop_last):
    dataset = image_set(55)
    alone = training(dataset, drop_last=drop_last)
    ranks = [training(dataset, rank=r, world=world, drop_last=drop_last) for r in range(world)]
    assert {len(loader) for loader in ranks} == {len(alone)}
    shares = zip(*(loader.batches(1) for loader in ranks), strict=True)
    for (images, labels), parts in zip(alone.batches(1), shares, strict=True):
        together = collect(parts)
        assert torch.equal(together[0], images)
        assert torch.equal(together[1], labels)
        sizes = [len(part[1]) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_loader_evaluates_with_any_number_of_ranks():
    dataset = numbered(9)
    ranks = [ResidentLoader(dataset, batch_size=8, rank=r, world=3) for r in range(3)]
    assert [[len(y) for _, y in loader] for loader in ranks] == [[2, 0], [3, 0], [3, 1]]
    seen = torch.cat([collect(loader)[1] for loader in ranks])
    assert sorted(seen.tolist()) == list(range(9))


def test_loader_can_crop_without_flipping():
    dataset = image_set(40)
    images, _ = collect(training(dataset, augmentation=Augmentation(2, flip=False)).batches(0))
    plan = epoch_plan(40, 0, 0, padding=2)
    still = torch.zeros(40, dtype=torch.bool)
    crops = crop_flip(dataset.images[plan.permutation], plan.offsets, still, padding=2)
    assert torch.equal(images, normalize(crops, *IMAGENET.constants()))


def test_loader_gives_the_type_and_memory_format_asked_for():
    loader = training(image_set(16), dtype=torch.bfloat16, memory_format=torch.channels_last)
    images, labels = next(loader.batches(0))
    assert images.dtype == torch.bfloat16
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64


def test_loader_keeps_class_names_and_preprocessing():
    loader = training(image_set(16))
    assert loader.classes == tuple("0123456789")
    assert loader.normalization is IMAGENET


def test_shuffled_loader_wants_to_know_the_epoch():
    with pytest.raises(ConfigError, match=r"loader\.batches\(epoch\)"):
        iter(training(numbered(50)))


@pytest.mark.parametrize("start", [-1, 5])
def test_loader_refuses_a_start_outside_the_epoch_before_the_first_batch(start):
    with pytest.raises(ConfigError, match=f"start={start}"):
        training(numbered(50)).batches(0, start=start)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"rank": 2, "world": 2}, "rank=2"),
        ({"rank": -1}, "rank=-1"),
        ({"batch_size": 15, "world": 2}, "does not divide"),
        ({"batch_size": 64, "drop_last": True}, "no batch of 64 with drop_last"),
        ({"batch_size": 7, "world": 7}, "The last batch has 1 images for 7"),
    ],
)
def test_loader_refuses_settings_that_cannot_train(options, message):
    with pytest.raises(ConfigError, match=message):
        training(numbered(50), **options)


def test_loader_refuses_an_empty_set():
    with pytest.raises(ConfigError, match="0 images give no batch"):
        ResidentLoader(numbered(0), batch_size=4)


@pytest.mark.gpu
def test_loader_on_the_gpu_equals_the_cpu():
    dataset = image_set(100)
    here, there = training(dataset), training(dataset, device="cuda")
    for (images, labels), (gpu_images, gpu_labels) in zip(
        here.batches(0), there.batches(0), strict=True
    ):
        assert gpu_images.is_cuda
        torch.testing.assert_close(gpu_images.cpu(), images, rtol=0, atol=1e-6)
        assert torch.equal(gpu_labels.cpu(), labels)


@pytest.mark.gpu
def test_loader_fetch_can_be_captured_in_a_cuda_graph():
    loader = training(image_set(100), device="cuda")
    plan = loader.plan(0)
    first = plan.part(*loader.bounds(0))
    static = EpochPlan(first.permutation.clone(), first.offsets.clone(), first.flips.clone())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loader.fetch(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        images, labels = loader.fetch(static)
    for index in (1, 2):
        part = plan.part(*loader.bounds(index))
        static.permutation.copy_(part.permutation)
        static.offsets.copy_(part.offsets)
        static.flips.copy_(part.flips)
        graph.replay()
        expected_images, expected_labels = loader.fetch(part)
        assert torch.equal(images, expected_images)
        assert torch.equal(labels, expected_labels)
