"""What a run is expected to take is what its stages cost; nothing private is read, and one number is said."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from idpgan import estimate
from idpgan.commands import rehearse
from idpgan.commands.doctor import capabilities
from idpgan.commands.init import InitOptions, config_for
from idpgan.commands.rehearse import RehearseOptions, rehearse_config
from idpgan.config import config_names
from idpgan.data import load as loading
from idpgan.data.load import DataShape, Sizes
from idpgan.errors import InputError
from idpgan.estimate import Estimate, expected
from idpgan.progress import Lines
from idpgan.synthesis.starter import Facts, alternatives, best
from idpgan.trainer import InterruptedTrainingError, load_config
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run

DIGITS = tuple("0123456789")
SHAPE = DataShape(Sizes(0, 20_000, 0, 100), (1, 8, 8), DIGITS)
COSTS = {  # seconds
    "start": 1.7, "once": 0.3, "image": 1e-3, "step": 2e-3, "record": 1e-5, "tick": 0.05, "release": 0.2,
    "round": 1e-3, "in a round": 2e-6,
}  # fmt: skip
STEPS, TICK, BATCH, ROUNDS = 600, 100, 2_048, 400
SETTINGS = [f"training.steps={STEPS}", f"training.tick_steps={TICK}", f"training.batch_size={BATCH}"]
TAUGHT = ["method.teacher_share=0.5", f"method.teacher_steps={ROUNDS}", "method.teacher_batch_size=5000"]


@pytest.fixture
def made(monkeypatch):
    """Runs of made costs, on a clock that only they move."""
    clock = [0.0]
    monkeypatch.setattr(estimate, "clock", lambda: clock[0])

    def of(changed=None):
        cost, images = COSTS | (changed or {}), []
        monkeypatch.setattr(estimate, "start_up", lambda: cost["start"])

        def work(seconds, *word):
            clock[0] += seconds
            if word:
                progress[0](*word)

        def train_on(config, split, told, *, whole=False):
            progress[0], num, rounds = told, len(split.private), getattr(config.method, "teacher_steps", 0)
            images.append(num)
            work(cost["once"])
            for done in range(16, num + 16, 16):
                work(16 * cost["image"], "features of images", min(done, num), num)
            if getattr(config.method, "teacher_share", 0):
                for done in range(1, rounds + 1):
                    read = min(num, config.method.teacher_batch_size)
                    work(cost["round"] + read * cost["in a round"], "teacher steps", done, rounds)
            steps, read = config.training.steps, min(num, config.training.batch_size)
            if steps:
                work(0.0, "training steps", 0, steps, "epsilon 0")
            for step in range(1, steps + 1):
                work(cost["step"] + read * cost["record"], "training steps", step, steps)
            if steps:
                work(cost["tick"], "training steps", steps, steps, "epsilon 3")
            work(cost["release"] * whole)
            planned = plan_run(config, split.shape)
            event = planned.events[-1] if steps else None
            return SimpleNamespace(product=None, plan=planned, step_event=lambda: event, paid_ahead=lambda _: ())

        progress = [None]
        monkeypatch.setattr(estimate, "train_on", train_on)
        return images

    return of


def config_of(*, steps):
    return load_config(Path("digits-diffusion"), SETTINGS) if steps else load_config(Path("digits-gaussian"), TAUGHT)


def real(steps, cost):
    """What a run of these costs takes."""
    num, taught = SHAPE.num_private, ROUNDS * (cost["round"] + 5_000 * cost["in a round"])
    stepped = STEPS * (cost["step"] + BATCH * cost["record"]) + math.ceil(STEPS / TICK) * cost["tick"]
    return cost["start"] + cost["once"] + num * cost["image"] + cost["release"] + (stepped if steps else taught)


@pytest.mark.parametrize("steps", [True, False], ids=["steps", "a teacher"])
@pytest.mark.parametrize("slower", [None, *COSTS])
def test_each_stage_is_in_the_estimate_at_its_cost(made, steps, slower):
    changed = {slower: 10 * COSTS[slower]} if slower else {}
    made(changed)
    found = expected(config_of(steps=steps), SHAPE)
    assert found.least <= found.seconds <= found.most
    assert found.seconds == pytest.approx(real(steps, COSTS | changed), rel=0.03)
    absent = {"round", "in a round"} if steps else {"step", "record", "tick"}
    if slower not in (None, *absent):
        assert real(steps, COSTS | changed) > 1.01 * real(steps, COSTS)  # so that the comparison can fail


def test_the_small_runs_stop_where_they_told_enough_and_say_a_range_where_they_could_not(made):
    images = made()
    found = expected(config_of(steps=False), SHAPE)
    assert found.told
    assert max(images) < SHAPE.num_private / 10
    images = made({"once": 1.0, "image": 1e-4, "round": 0.0, "in a round": 0.0})  # too slow to try with many images
    found = expected(load_config(Path("digits-gaussian"), []), SHAPE)
    assert max(images) <= 1_024
    cost = COSTS | {"once": 1.0, "image": 1e-4}
    taken = cost["start"] + cost["once"] + SHAPE.num_private * cost["image"] + cost["release"]
    assert not found.told
    assert found.least <= taken <= found.most
    assert " to " in str(found)


def test_a_small_data_set_is_tried_as_it_is(made):
    images = made()
    expected(config_of(steps=False), small(50))
    assert set(images) == {50}


def small(num):
    return DataShape(Sizes(0, num, 0, 10), (1, 8, 8), DIGITS)


def test_files_and_drawn_images_are_counted(made, monkeypatch):
    made()
    clock = [0.0]

    def drawn(config, image_shape, classes):
        clock[0] += 1 + 0.01 * config.public_images

    def decoded(path, channels, sides):
        clock[0] += 0.02

    monkeypatch.setattr(estimate, "clock", lambda: clock[0])
    monkeypatch.setattr(estimate, "draw_public", drawn)
    monkeypatch.setattr(estimate, "decode", decoded)
    folder = {"name": "folder", "root": "photos", "num_images": 400, "image_size": 8, "channels": 1, "classes": []}
    table = {"data": folder, "method": {"name": "gaussian"}, "model": {"generator": "gaussian"}}
    privacy = {"privacy": {"epsilon": 1.0, "delta": 1e-5}}
    shape = DataShape(Sizes(50, 300, 20, 80), (1, 8, 8), ())
    asked = build_config(table | privacy, "a test")
    assert estimate._reading(asked, shape) == pytest.approx(450 * 0.02)
    drawing = {**folder, "public": "faces", "public_images": 50}
    asked = build_config(table | privacy | {"data": drawing}, "a test")
    assert estimate._reading(asked, shape) == pytest.approx(400 * 0.02 + 50 * 0.01)
    assert estimate._reading(load_config(Path("digits-gaussian")), shape) == 0


# The real thing ------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(estimate, "start_up", lambda: 0.0)
    monkeypatch.setattr(estimate, "SECONDS", 0.0)


def test_nothing_private_is_read_and_nothing_is_kept(quick, monkeypatch, tmp_path):
    def read(*_):
        raise AssertionError("private images are read")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("idpgan.trainer.load", read)
    for source in loading.SOURCES.values():
        monkeypatch.setattr(source, "read", read)
    assert 0 < expected(load_config(Path("digits-gaussian")), small(40)).least < 60
    assert not list(tmp_path.iterdir())
    with pytest.raises(AssertionError, match="private images are read"):  # what a run does
        loading.load(load_config(Path("digits-gaussian")).data)


PEOPLE = Facts(DataShape(Sizes(0, 300, 0, 100), (1, 28, 28), (), has_people=True), 3.0, handwriting=False)


@pytest.mark.parametrize("choice", [best(PEOPLE), alternatives(PEOPLE)[0]], ids=lambda choice: choice.method)
def test_images_of_people_are_tried_too(quick, choice):
    """The people who are tested are others than those who are private, or every method of unit person refuses."""
    sections = {name: {key: each.value for key, each in keys.items()} for name, keys in choice.sections.items()}
    data = {"name": "folder", "root": "photos", "num_images": 400, "num_people": 133, "split_by": "identity"}
    config = build_config({"data": {**data, "image_size": 28, "channels": 1, "classes": []}, **sections}, "a test")
    assert config.privacy.unit == "person"
    assert 0 < expected(config, PEOPLE.shape).least < float("inf")


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (RuntimeError("no memory\nat all"), InputError),
        (InterruptedTrainingError("Stopped."), KeyboardInterrupt),
    ],
)
def test_what_ends_a_small_run_ends_the_estimate(quick, monkeypatch, raised, becomes):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr(estimate, "train_on", fail)
    with pytest.raises(becomes) as error:
        expected(load_config(Path("digits-gaussian")), small(40))
    assert becomes is KeyboardInterrupt or "gaussian cannot be tried here (no memory)" in str(error.value)


def test_doctor_init_and_rehearse_say_one_number_of_one_config(monkeypatch, tmp_path, capsys):
    asked = []

    def once(config, shape):
        asked.append((config, shape))
        return Estimate.sure(1_000.0)

    def stop(*_, **__):
        raise InputError("stopped.")

    monkeypatch.setattr(estimate, "expected", once)
    monkeypatch.setattr("idpgan.data.stand_ins.stand_ins", stop)
    (note,) = config_for("digits-gaussian", InitOptions()).notes
    with pytest.raises(InputError, match="stopped"):
        rehearse_config(RehearseOptions(("digits-gaussian",), epsilon=(1.0,), out=None), Lines())
    told = capsys.readouterr().err
    assert asked[0] == asked[1]
    assert {each.found for each in capabilities()} == {"about 17 min"}
    assert "about 17 min on this machine" in note
    assert "about 17 min on this machine each" in told
    asked.clear()
    with pytest.raises(InputError, match="stopped"):
        rehearse.rehearse_config(RehearseOptions(("digits-gaussian",), epsilon=(1.0,), out=None))  # nobody would see it
    assert not asked


@pytest.mark.parametrize("name", [name for name in config_names() if name.startswith(("digits-", "mnist-"))])
def test_every_config_is_cut_to_a_run_that_is_not_refused(name):
    config = load_config(Path(name), ["privacy.accept_unsound=true"])
    public = 500 if config.data.public or config.data.public_share or config.data.public_root else 0
    shape = DataShape(Sizes(public, 5_000, 0, 100), (1, 8, 8) if name.startswith("digits") else (1, 28, 28), DIGITS)
    split = estimate._random(shape, 64)
    cut = estimate._cut(config, split, 3)
    plan_run(cut, split.shape).check()
    assert cut.training.steps == min(3, config.training.steps)
