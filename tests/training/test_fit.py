import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from idpgan.config import build
from idpgan.data.images import to_float
from idpgan.errors import ConfigError, InputError
from idpgan.models.classifier import build_classifier
from idpgan.models.initialize import Ema, seeded_init
from idpgan.models.optimizers import AdamW
from idpgan.training.fit import FitConfig, FitError, fit_classifier, predict

FAST = FitConfig(epochs=4, batch_size=32, learning_rate=3e-2)


def linear(features=6, classes=3, seed=0):
    with seeded_init(seed):
        return nn.Linear(features, classes)


def nothing_known():
    model = linear()
    nn.init.zeros_(model.weight)
    return model


def blobs(num=300, features=6, classes=3, seed=0):
    """Float vectors around one center per class."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % classes
    return 5 * torch.eye(features)[labels] + torch.randn(num, features, generator=rng), labels


def accuracy(model, images, labels):
    return predict(model, images).argmax(1).eq(labels).double().mean().item()


@pytest.mark.trained
@pytest.mark.parametrize("schedule", ["one_cycle", "cosine", "step"])
def test_it_learns_what_can_be_learnt(schedule):
    images, labels = blobs()
    model = linear()
    fitted = fit_classifier(model, images, labels, config=FAST.model_copy(update={"schedule": schedule}))
    assert fitted.model is model
    assert not model.training
    assert accuracy(model, *blobs(seed=1)) > 0.95
    assert [epoch.number for epoch in fitted.history] == [1, 2, 3, 4]
    assert fitted.history[-1].train_loss < fitted.history[0].train_loss


@pytest.mark.trained
def test_shuffled_labels_teach_nothing():
    images, labels = blobs(num=900)
    shuffled = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))]
    believed = []
    for taught in (labels, shuffled):
        model = fit_classifier(linear(), images, taught, config=FAST).model
        images_again, truth = blobs(seed=1)
        believed.append(predict(model, images_again).softmax(1)[torch.arange(len(truth)), truth].mean())
    assert believed[0] > 0.8
    assert believed[1] < 0.5  # chance is 1/3


@pytest.mark.trained
def test_the_best_held_back_epoch_is_kept():
    images, labels = blobs(num=90)
    held_back, steps = blobs(num=60, seed=1), [0]
    fitted = fit_classifier(  # later images are turned inside out: what was learned is lost again
        linear(), images, labels, config=FAST.model_copy(update={"epochs": 8, "batch_size": 8}), held_back=held_back,
        augment=lambda batch, rng: batch if steps[-1] < 24 else -batch, on_step=lambda done, total: steps.append(done),
    )  # fmt: skip
    assert fitted.best == max(fitted.history, key=lambda epoch: (epoch.held_back_accuracy, -epoch.held_back_loss))
    assert accuracy(fitted.model, *held_back) == fitted.best.held_back_accuracy
    assert fitted.best != fitted.history[-1]  # else the test shows nothing: the last weights would pass too
    assert fitted.best.held_back_accuracy > fitted.history[-1].held_back_accuracy + 0.2


def test_the_learning_rate_falls_in_two_steps(monkeypatch):
    """To a fifth after 20 and 40 of 50 epochs, as with StepLR(20, 0.2)."""
    seen, adam = [], AdamW.step

    def step(optimizer, *arguments, **options):
        seen.append(optimizer.param_groups[0]["lr"])
        return adam(optimizer, *arguments, **options)

    monkeypatch.setattr(AdamW, "step", step)
    config = FitConfig(epochs=50, batch_size=20, learning_rate=1e-2, schedule="step", held_back_share=1 / 12)
    fit_classifier(linear(), *blobs(num=36), config=config)  # 33 to train on: 2 batches
    assert seen == pytest.approx([1e-2] * 40 + [2e-3] * 40 + [4e-4] * 20)


def test_a_moving_average_is_judged_and_kept():
    images, labels = blobs(num=90)
    model = linear()
    followed, newest = Ema(model, 0.9999), []
    config = FAST.model_copy(update={"epochs": 1, "ema_decay": 0.9999})

    def record(batch, rng):  # before each step, so without the last one
        newest.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return batch

    fitted = fit_classifier(model, images, labels, config=config, held_back=blobs(num=60, seed=1), augment=record)
    assert accuracy(fitted.model, *blobs(num=60, seed=1)) == fitted.best.held_back_accuracy
    copy = linear()
    for weights in newest[1:]:
        copy.load_state_dict(weights)
        followed.update(copy)
    expected = followed.module.weight.detach()  # still without the last step, whose share is 1 - 4/13
    kept = fitted.model.weight.detach()
    last = (kept - expected * 4 / 13) / (9 / 13)
    one_step = (last - newest[-1]["weight"]).abs().max()
    assert 0 < one_step < 0.1  # what is left is one step of Adam: at most about the learning rate, 0.03
    assert (kept - newest[-1]["weight"]).abs().max() > 1e-4  # not the weights themselves


def test_held_back_images_are_not_trained_on():
    seen = []

    def record(batch, rng):
        seen.append(batch[:, 0].clone())
        return batch

    images, labels = torch.arange(50.0)[:, None], torch.arange(50) % 3
    config = FitConfig(epochs=3, batch_size=16, held_back_share=0.2)
    fit_classifier(linear(1), images, labels, config=config, augment=record)
    batches = torch.tensor([len(batch) for batch in seen])
    assert batches.tolist() == [14, 13, 13] * 3  # none dropped, none tiny
    epochs = [torch.cat(seen[start : start + 3]).sort().values for start in (0, 3, 6)]
    assert len(epochs[0].unique()) == 40
    assert all(torch.equal(epoch, epochs[0]) for epoch in epochs)
    assert not torch.equal(seen[0], seen[3])  # a new order every epoch


def test_one_seed_one_result_and_the_callers_random_state_is_left_alone():
    def run(seed):
        noise = lambda batch, rng: batch + torch.randn(batch.shape, generator=rng)  # noqa: E731
        config = FAST.model_copy(update={"seed": seed})
        return fit_classifier(linear(), *blobs(), config=config, augment=noise).history

    state = torch.get_rng_state()
    assert run(1) == run(1)
    assert run(1) != run(2)
    assert torch.equal(torch.get_rng_state(), state)


def test_uint8_images_are_scaled_like_everywhere():
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (64, 1, 8, 8), generator=rng, dtype=torch.uint8)
    labels = torch.arange(64) % 10
    fits = [
        fit_classifier(build_classifier("cnn", (1, 8, 8), 10), given, labels, config=FAST)
        for given in (images, to_float(images))
    ]
    assert fits[0].history == fits[1].history


@pytest.mark.trained
def test_augmentation_changes_what_is_trained_on():
    images, labels = blobs()
    blank = fit_classifier(nothing_known(), images, labels, config=FAST, augment=lambda batch, rng: 0 * batch)
    assert accuracy(blank.model, images, labels) == pytest.approx(1 / 3)  # all are taken for one class
    assert accuracy(fit_classifier(nothing_known(), images, labels, config=FAST).model, images, labels) > 0.95


def test_the_host_waits_once_an_epoch_and_never_in_a_step(monkeypatch):
    waits = []
    for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, original=original: waits.append(1) or original(self), raising=True
        )
    counts = []
    for batch_size in (10, 100):
        waits.clear()
        fit_classifier(linear(), *blobs(), config=FitConfig(epochs=2, batch_size=batch_size))
        counts.append(len(waits))
    assert counts[0] == counts[1]  # ten times as many steps
    assert counts[0] > 0  # else nothing was counted


def test_progress_hears_of_every_step():
    """So that the time left is known after the second one, however long an epoch takes."""
    heard, config = [], FitConfig(epochs=2, batch_size=10)
    fit_classifier(linear(), *blobs(num=40), config=config, on_step=lambda *said: heard.append(said))
    assert heard == [(done, len(heard)) for done in range(1, len(heard) + 1)]
    assert len(heard) == 8  # a tenth of 40 is held back


@settings(max_examples=25, deadline=None)
@given(num=st.integers(3, 40), batch_size=st.integers(3, 50), epochs=st.integers(1, 3))
def test_small_sets_are_fitted_too(num, batch_size, epochs):
    images = torch.rand(num, 1, 8, 8, generator=torch.Generator().manual_seed(num))
    config = FitConfig(epochs=epochs, batch_size=batch_size)
    # Batch normalization cannot take one image alone where it has one position; the batches must not leave one over.
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), linear(64, 2))
    assert len(fit_classifier(model, images, torch.arange(num) % 2, config=config).history) == epochs


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64), "no images"),
        (torch.zeros(5, 6), torch.zeros(4, dtype=torch.int64), r"labels of 5 images must be int64 \(5,\)"),
        (torch.zeros(5, 6), torch.zeros(5), "torch.float32"),
        (torch.zeros(5, 6, dtype=torch.int64), torch.zeros(5, dtype=torch.int64), "uint8 or floating point"),
        (torch.full((5, 6), torch.nan), torch.zeros(5, dtype=torch.int64), "NaN or infinity"),
        (torch.zeros(5, 6), torch.tensor([0, 1, 2, 3, 0]), r"in \[0, 3\], but the model has the classes 0 to 2"),
        (torch.zeros(5, 6), torch.tensor([0, 1, 2, -1, 0]), r"in \[-1, 2\]"),
        (torch.zeros(2, 6), torch.tensor([0, 1]), "1 image is left"),
    ],
)
def test_bad_input_is_refused(images, labels, message):
    with pytest.raises(InputError, match=message):
        fit_classifier(linear(), images, labels)


def test_a_bad_validation_part_is_named():
    with pytest.raises(InputError, match="validation images hold NaN"):
        fit_classifier(linear(), *blobs(), held_back=(torch.full((1, 6), torch.nan), torch.zeros(1, dtype=torch.int64)))


def test_a_loss_that_is_no_number_stops_the_fit():
    images, labels = blobs()
    with pytest.raises(FitError, match=r"epoch 1 .* diverged. Lower learning_rate"):
        fit_classifier(linear(), images * 1e30, labels, config=FAST.model_copy(update={"learning_rate": 1e30}))


@pytest.mark.parametrize("table", [{"epochs": 0}, {"batch_size": 2}, {"learning_rate": 0}, {"schedule": "stepwise"}])
def test_config_refuses_what_cannot_train(table):
    with pytest.raises(ConfigError, match=next(iter(table))):
        build(FitConfig, table, "[fit]")


def test_predict_does_not_depend_on_batches_and_restores_the_mode():
    images = torch.rand(25, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model = build_classifier("cnn", (1, 8, 8), 10).train()
    features = [predict(model, images, output=model.features, batch_size=size) for size in (7, 1000)]
    assert torch.allclose(*features, atol=1e-6)
    assert model.training
    features[0].requires_grad_().sum().backward()  # an inference tensor would refuse
