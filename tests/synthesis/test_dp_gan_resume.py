"""dp-GAN: a run that was killed goes on as if it had not been, or draws fresh noise and pays again."""

import shutil

import pytest
import torch

from idpgan.privacy import Noise, dpsgd, graphs
from idpgan.synthesis.dp_gan import Method as DpGan
from tests.synthesis.test_dp_gan import DELTA, config_of, loop, method_of, weights
from tests.training.toy import remains


class Killed(DpGan):
    def critic_step(self, step):
        if step == 8:  # after the charge, two steps after the last saved state
            raise KeyboardInterrupt
        return super().critic_step(step)


@pytest.mark.parametrize(
    "method",
    [
        {"adaptive_below": 0.99, "augment": 0.5},
        {"loss": "wgan-gp", "fakes": "separate"},
        {"engine": "opacus", "augment": 0.5},
    ],
)
def test_a_resumed_run_equals_the_uninterrupted_one_and_costs_the_same(method, tmp_path):
    config = config_of(**method)
    _, whole = loop(tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        loop(tmp_path / "killed", config, kind=Killed)
    outcome, resumed = loop(tmp_path / "killed", config)
    assert outcome.step == 12
    assert remains(tmp_path / "whole") == remains(tmp_path / "killed")
    assert whole.ledger.epsilon(DELTA) == resumed.ledger.epsilon(DELTA) > 0
    assert resumed.ledger.events == (whole.step_event().repeated(12),)


def killed(path, config):
    """Kill a run after the charges of steps 7 and 8, its state at step 6."""
    with pytest.raises(KeyboardInterrupt):
        loop(path, config, kind=Killed)


def test_a_resumed_run_takes_its_slots_from_the_state(tmp_path, monkeypatch):
    killed(tmp_path / "run", config_of())
    _, whole = loop(tmp_path / "whole", config_of())
    assert len(whole.tiles.kinds.unique()) == 1
    monkeypatch.setattr(dpsgd, "alike", lambda rows, *_: torch.arange(rows))  # what chance may find
    _, resumed = loop(tmp_path / "run", config_of())
    assert repr(resumed.tiles) == repr(whole.tiles)
    assert remains(tmp_path / "run") == remains(tmp_path / "whole")


def test_a_state_of_before_layouts_were_saved_is_read_and_not_repeated_from():
    method, other = method_of(config_of()), method_of(config_of(), seed=2)
    method.step(1)
    state = method.state()
    assert state.pop("tiles")["chunk"] == 32
    other.load_state({**state, "physical_batch": 32, "way": "capture"})
    assert torch.equal(weights(other.critic), weights(method.critic))
    assert not other.settle(True)
    method.load_state(method.state())
    assert method.settle(True)


def test_a_resume_whose_records_are_computed_otherwise_draws_fresh_noise_and_pays_again(tmp_path, monkeypatch):
    killed(tmp_path / "equal", config_of())
    for name in ("less memory", "other limit"):
        shutil.copytree(tmp_path / "equal", tmp_path / name)
    real, rekeyed = graphs.record_gradients, []
    monkeypatch.setattr(type(Noise.fixed(0)), "rekey", lambda noise: rekeyed.append(noise))
    _, equal = loop(tmp_path / "equal", config_of())
    assert (equal.ledger.has_repeated, rekeyed) == (False, [])

    def tight(loss, weights, chunk, way):
        if len(chunk[0]) > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(loss, weights, chunk, way)

    with monkeypatch.context() as patch:
        patch.setattr(graphs, "record_gradients", tight)
        _, little = loop(tmp_path / "less memory", config_of())
    with monkeypatch.context() as patch:
        patch.setenv("OMP_THREAD_LIMIT", "1")
        _, limited = loop(tmp_path / "other limit", config_of())
    assert (equal.tiles.chunk, little.tiles.chunk, limited.tiles.chunk) == (32, 13, 32)
    assert rekeyed == [little.noise, limited.noise]
    for other in (little, limited):
        assert other.ledger.has_repeated
        assert other.ledger.events == (other.step_event().repeated(12 + 2),)


@pytest.mark.slow
@pytest.mark.parametrize("threads", range(1, 17))
@pytest.mark.parametrize("method", [{}, {"loss": "wgan-gp"}])
def test_a_resumed_run_is_equal_with_any_number_of_threads(method, threads, tmp_path):
    sizes = {"privacy": {"sample_rate": 0.1}, "training": {"batch_size": 130}}
    config, before = config_of(**method, model={"width": 5}, **sizes), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        loop(tmp_path / "whole", config)
        killed(tmp_path / "killed", config)
        loop(tmp_path / "killed", config)
    finally:
        torch.set_num_threads(before)
    assert remains(tmp_path / "whole") == remains(tmp_path / "killed")
