"""Averages, stats.jsonl and TensorBoard."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import math
import resource
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from idpgan.commands import main
from idpgan.commands.command import explain
from idpgan.errors import InputError
from idpgan.models.checkpoint import build_generator
from idpgan.models.config import ModelConfig
from idpgan.training.stats import Recorder, SampleGrid, TensorBoard, read_stats

NETWORK = torch.nn.Linear(1, 1)


def tick(recorder, step, epsilon=0.5):
    return recorder.tick(step, epsilon=epsilon, delta=1e-5, generator=NETWORK)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50))
def test_the_tick_holds_the_mean_in_double_precision(values):
    recorder = Recorder("unused", 1)
    for value in values:
        recorder.add({"loss": torch.tensor(value, dtype=torch.float32)})
    assert tick(recorder, 1).stats["loss"] == pytest.approx(math.fsum(values) / len(values), rel=1e-12, abs=1e-9)


def test_a_missing_value_is_not_counted_and_a_tick_starts_anew():
    recorder = Recorder("unused", 1)
    recorder.add({"a": torch.tensor(1.0), "b": torch.tensor(5.0)})
    recorder.add({"a": torch.tensor(3.0)})
    assert tick(recorder, 2).stats == {"a": 2.0, "b": 5.0}
    assert tick(recorder, 3).stats == {}


def test_a_statistic_that_is_changed_afterwards_keeps_its_value():
    recorder, value = Recorder("unused", 1), torch.tensor(1.0, dtype=torch.float64)
    recorder.add({"a": value})
    value += 10
    assert tick(recorder, 1).stats == {"a": 1.0}


@pytest.mark.parametrize("value", [1.0, torch.ones(1)])
def test_only_scalars_on_the_device_are_taken(value):
    with pytest.raises(TypeError, match="0-d tensor"):
        Recorder("unused", 1).add({"loss": value})


def test_speed_counts_steps_and_real_images_since_the_last_tick(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("idpgan.training.stats.time.monotonic", lambda: now[0])
    recorder = Recorder("unused", 64)
    now[0] += 5
    assert tick(recorder, 10).steps_per_second == 2
    now[0] += 10
    second = tick(recorder, 50)
    assert (second.seconds, second.steps_per_second, second.images_per_second) == (15, 4, 256)


def test_a_line_holds_every_number_and_infinity_is_text(tmp_path):
    recorder = Recorder(tmp_path / "stats.jsonl", 2)
    recorder.add({"loss": torch.tensor(0.25)})
    recorder.write(tick(recorder, 7, epsilon=math.inf))
    (row,) = read_stats(recorder.path)
    assert row.keys() == {
        "step", "seconds", "steps_per_second", "images_per_second", "epsilon", "delta", "loss",
    }  # fmt: skip
    assert (row["step"], row["epsilon"], row["delta"], row["loss"]) == (7, "inf", 1e-5, 0.25)


def test_a_resumed_record_goes_on_with_its_averages_and_its_clock(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("idpgan.training.stats.time.monotonic", lambda: now[0])
    first = Recorder(tmp_path / "stats.jsonl", 1)
    first.write(tick(first, 4))
    first.add({"loss": torch.tensor(1.0)})
    now[0] = 3.0
    state = first.state()
    first.write(tick(first, 8))  # of the steps that are lost

    now[0] = 1000.0
    second = Recorder(tmp_path / "stats.jsonl", 1)
    second.load_state(state)
    assert [row["step"] for row in read_stats(second.path)] == [4]
    second.add({"loss": torch.tensor(2.0)})
    now[0] = 1001.0
    assert tick(second, 8).stats == {"loss": 1.5}
    assert second.seconds == 4


def test_a_step_without_a_value_does_not_count(tmp_path):
    recorder = Recorder(tmp_path / "stats.jsonl", 1)
    recorder.add({"loss": torch.tensor([4.0, 1.0]), "never": torch.zeros(2), "always": torch.tensor(1.0)})
    state = recorder.state()
    resumed = Recorder(tmp_path / "stats.jsonl", 1)
    resumed.load_state(state)
    for value in ([0.0, 0.0], [2.0, 1.0]):
        resumed.add({"loss": torch.tensor(value), "never": torch.zeros(2), "always": torch.tensor(4.0)})
    assert tick(resumed, 3).stats == {"loss": 3.0, "always": 3.0}


def test_truncation_keeps_the_bytes_of_what_stays_and_drops_half_a_line(tmp_path):
    path = tmp_path / "stats.jsonl"
    lines = [json.dumps({"step": step, "loss": 0.1 + step / 3}) + "\n" for step in (5, 10, 15)]
    path.write_text("".join(lines) + '{"step": 20, "lo')
    Recorder(path, 1).truncate(10)
    assert path.read_text() == "".join(lines[:2])


@pytest.mark.parametrize("damage", ["not json", "[1]", '{"loss": 1}', '{"step": "5"}'])
def test_a_damaged_line_is_named(tmp_path, damage):
    path = tmp_path / "stats.jsonl"
    path.write_text(f'{{"step": 1}}\n{damage}\n{{"step": 3}}\n')
    with pytest.raises(InputError, match="line 2 is damaged"):
        read_stats(path)


def test_tensorboard_curves_join_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps in [(5, 10, 15), (10, 15)]:  # a run killed after 15, its state at 5
        scalars, recorder = TensorBoard(tmp_path), Recorder("unused", 1)
        for step in steps:
            recorder.add({"loss": torch.tensor(float(step + 100 * len(steps)))})
            scalars(tick(recorder, step))
        scalars.close()
        scalars.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(5, 305), (10, 210), (15, 215)]


def test_tensorboard_has_the_grid_of_each_tick_and_the_finite_weights(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    generator = build_generator(ModelConfig(width=4, latent_dim=4, conditional=False), (1, 8, 8), 0, seed=0).eval()
    diverged = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(diverged.bias, math.nan)
    recorder, grid = Recorder("unused", 1), SampleGrid(tmp_path, num=4)
    board = TensorBoard(tmp_path / "events", grid)
    board(dataclasses.replace(tick(recorder, 0), generator=diverged))  # as of a classifier, which draws nothing
    drawn = dataclasses.replace(tick(recorder, 5), generator=generator)
    grid(drawn)
    board(drawn)
    board.close()
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    (shown,) = events.Images("samples")
    with (
        Image.open(io.BytesIO(shown.encoded_image_string)) as seen,
        Image.open(tmp_path / "step_000005.png") as written,
    ):
        assert shown.step == 5
        assert seen.convert("L").tobytes() == written.tobytes()
    drawn = {f"weights/{name}" for name, _ in generator.named_parameters()}
    assert set(events.Tags()["histograms"]) == drawn | {"weights/weight"}


def test_tensorboard_has_the_gradient_norm_of_each_generated_batch_since_the_last_tick(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    network = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.0)
    recorder, board = Recorder("unused", 1), TensorBoard(tmp_path, optimizers=[optimizer])
    for step, gradients in enumerate([(3.0, 5.0), (1.0,), (), (math.nan,)], start=1):
        for size in gradients:
            network.weight.grad, network.bias.grad = torch.tensor([[0.6, 0.0]]) * size, torch.tensor([0.8]) * size
            optimizer.step()
        board(dataclasses.replace(tick(recorder, step), generator=network))
    board.close()
    optimizer.step()  # watched no longer
    events = EventAccumulator(str(tmp_path), {"histograms": 0}).Reload()
    found = events.Histograms("gradient norms of generated batches")
    values = [(each.step, each.histogram_value.num, each.histogram_value.sum) for each in found]
    assert values == [(1, 2, pytest.approx(8)), (2, 1, pytest.approx(1))]


def test_tensorboard_ends_with_the_settings_beside_the_last_measures(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorder, board = Recorder("unused", 1), TensorBoard(tmp_path)
    board.end({"training": {"steps": 5}})  # no tick: nothing to say, and no file
    assert not list(tmp_path.iterdir())
    for step, loss in ((5, 1.0), (10, 0.25)):
        recorder.add({"loss": torch.tensor(loss)})
        board(tick(recorder, step, epsilon=0.75))
    board.end({"training": {"steps": 10, "device": "cpu"}, "method": {"sides": (1, 2)}, "contained": []})
    board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    (start,) = (
        events.summary_metadata[tag] for tag in events.summary_metadata if tag == "_hparams_/session_start_info"
    )
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    said = HParamsPluginData.FromString(start.plugin_data.content).session_start_info.hparams
    assert said["training.steps"].number_value == 10
    assert said["training.device"].string_value == "cpu"
    assert said["method.sides"].string_value == "(1, 2)"
    assert [events.Scalars(f"final/{name}")[0].value for name in ("loss", "epsilon")] == [0.25, 0.75]


@pytest.mark.parametrize("room", [10, 2_000, 100_000])
def test_a_full_disk_is_said_of_the_file_of_tensorboard_by_whoever_writes(tmp_path, room):
    """No thread writes behind the run's back, where the error would be a traceback that nobody can catch."""
    threads, (soft, hard) = threading.active_count(), resource.getrlimit(resource.RLIMIT_FSIZE)
    network, recorder, board = torch.nn.Linear(100, 300), Recorder("unused", 1), TensorBoard(tmp_path)

    def write():
        with contextlib.closing(board):
            for step in range(200):
                board(dataclasses.replace(tick(recorder, step), generator=network))

    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match="too large") as refused:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ".tfevents." in refused.value.filename
    assert threading.active_count() == threads
    assert "tfevents" in str(explain(refused.value))
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o077 == 0


def test_a_run_that_tensorboard_has_no_room_for_ends_in_one_line_and_goes_on(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    settings = ["training.steps=4", "training.tick_steps=2", "training.batch_size=16", "model.width=8"]
    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", full)
    with pytest.raises(SystemExit) as ended:
        main(["train", "digits-wgan-gp", *settings, "--out", str(tmp_path / "run")])
    monkeypatch.undo()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("idpgan: ")]
    assert (ended.value.code, len(said)) == (2, 1)
    assert "tfevents" in said[0]
    assert said[0].endswith("No space left on device. Make room there, or write to another disk.")
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", str(tmp_path / "run")])
    assert not ended.value.code
