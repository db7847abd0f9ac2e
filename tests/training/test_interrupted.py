"""A run that is stopped at any durable write, and one that goes on elsewhere: nothing is paid twice or for nothing."""

from __future__ import annotations

import errno
import shutil
import signal

import pytest
import torch

from idpgan.privacy import Ledger, Noise, compose_epsilon
from idpgan.run import RunFolder
from idpgan.training import state as state_module
from idpgan.training.state import StateStore, machine_fingerprint
from tests.training.toy import (
    DELTA,
    FakeMethod,
    NoisyGan,
    Stopped,
    fake_ledger,
    fake_train,
    gaussian,
    new_run,
    remains,
    stopping_at,
    tiny_config,
    train_on_digits,
)

CONFIG = tiny_config(steps=4, tick_steps=2)
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    with stopping_at(0, Stopped()) as calls:
        train_on_digits(path, CONFIG, kind=NoisyGan)
    return remains(path), len(calls)


@pytest.mark.parametrize(("first", "error"), [(4, KeyboardInterrupt()), (5, FULL)], ids=["ctrl-c", "disk full"])
def test_a_run_stopped_at_any_write_ends_as_if_it_had_not_been(tmp_path, whole, first, error):
    expected, writes = whole
    assert writes > 15
    for number in range(first, writes + 1, 2):  # the first three make the folder
        path = tmp_path / str(number)
        with stopping_at(number, error) as calls:
            try:
                outcome, _ = train_on_digits(path, CONFIG, kind=NoisyGan)
                assert outcome.ended == "interrupted"  # Ctrl-C while it is prepared ends in order
            except (KeyboardInterrupt, OSError):
                pass
        assert len(calls) >= number
        outcome, _ = train_on_digits(path, CONFIG, kind=NoisyGan)
        assert outcome.ended == "finished"
        assert remains(path) == expected, f"stopped at write {number}"
        assert not list(path.rglob("*.part"))


def test_the_comparison_sees_a_charge_that_is_paid_twice(tmp_path, whole):
    expected, _ = whole

    class Forgetful(NoisyGan):  # charges as before there was `Ledger.release`
        def prepare(self):
            self.ledger.charge(gaussian(20.0))
            super().prepare()

    path = tmp_path / "run"
    with stopping_at(8, Stopped()), pytest.raises(Stopped):
        train_on_digits(path, CONFIG, kind=Forgetful)
    train_on_digits(path, CONFIG, kind=Forgetful)
    assert remains(path)["ledger"] != expected["ledger"]


# Keys -----------------------------------------------------------------------------------------------------------------


class Listening(NoisyGan):
    """Draws from the operating system, and writes down under which key each step draws."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.noise = Noise.system()
        self.keys = []

    def critic_step(self, step):
        self.keys.append(self.noise.state()["key"])
        return super().critic_step(step)


def key_on_disk(path):
    return torch.load(RunFolder(path).state, weights_only=True)["method"]["noise"]["key"]


def test_a_saved_state_holds_no_key_of_a_step_before_it_and_a_finished_one_none_at_all(tmp_path):
    class Stopping(Listening):
        def critic_step(self, step):
            if step == 3:
                signal.raise_signal(signal.SIGTERM)
            return super().critic_step(step)

    _, method = train_on_digits(tmp_path / "run", CONFIG, kind=Stopping)
    assert len(set(method.keys)) == 3  # every step has its own
    assert key_on_disk(tmp_path / "run") not in method.keys
    outcome, method = train_on_digits(tmp_path / "run", CONFIG, kind=Listening)
    assert outcome.ended == "finished"
    assert method.noise.erased
    assert key_on_disk(tmp_path / "run") is None
    before = remains(tmp_path / "run")
    assert train_on_digits(tmp_path / "run", CONFIG, kind=Listening)[0].ended == "finished"
    assert remains(tmp_path / "run") == before


def test_a_run_that_ends_with_its_budget_holds_no_key_either(tmp_path):
    run = new_run(tmp_path / "run")
    method = FakeMethod(fake_ledger(run, compose_epsilon([gaussian().repeated(3)], DELTA) * 1.0001), gaussian())
    method.noises = (Noise.system(),)
    assert fake_train(method, run).ended == "budget"
    assert method.noises[0].erased


# Elsewhere ------------------------------------------------------------------------------------------------------------


def stopped_at_four(path):
    """A run whose state stands at step 2 and whose ledger at step 4; what a restored backup looks like too."""

    class Failing(Listening):
        def critic_step(self, step):
            stats = super().critic_step(step)
            if step == 4:
                raise Stopped
            return stats

    with pytest.raises(Stopped):
        train_on_digits(path, tiny_config(steps=6, tick_steps=2), kind=Failing)


def resumed(path, threads=None):
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        return train_on_digits(path, tiny_config(steps=6, tick_steps=2), kind=Listening)[1]
    finally:
        torch.set_num_threads(before)


def test_two_continuations_share_their_noise_only_if_they_are_one_computation(tmp_path):
    stopped_at_four(tmp_path / "run")
    for name in ("again", "elsewhere"):
        shutil.copytree(tmp_path / "run", tmp_path / name)
    here, again = resumed(tmp_path / "run"), resumed(tmp_path / "again")
    assert here.keys == again.keys
    assert remains(tmp_path / "run") == remains(tmp_path / "again")
    assert here.ledger.events == (gaussian(20.0), gaussian(100.0).repeated(6))

    elsewhere = resumed(tmp_path / "elsewhere", torch.get_num_threads() + 1)
    assert len({*here.keys, *elsewhere.keys}) == len(here.keys) * 2 == 8
    assert elsewhere.ledger.events == (gaussian(20.0), gaussian(100.0).repeated(6 + 2))  # two steps are paid again
    assert elsewhere.ledger.has_repeated


def test_an_older_state_is_not_repeated_from(tmp_path):
    stopped_at_four(tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    older = run.state.read_bytes()
    here = resumed(run.path)
    run.state.write_bytes(older)
    again = resumed(run.path)
    assert not set(again.keys) & set(here.keys)
    assert again.ledger.events == (gaussian(20.0), gaussian(100.0).repeated(6 + 4))


@pytest.fixture
def elsewhere(monkeypatch):
    """Go on on a machine of another kind, until `undo`."""
    other = machine_fingerprint() | {"processor": "another"}

    def move():
        monkeypatch.setattr(state_module, "machine_fingerprint", lambda: other)

    return move


def test_repeated_steps_are_paid_again_and_the_run_ends_with_its_budget(tmp_path, elsewhere):
    run = new_run(tmp_path / "run")
    target = compose_epsilon([gaussian().repeated(9)], DELTA) * 1.0001
    with pytest.raises(RuntimeError):
        fake_train(FakeMethod(fake_ledger(run, target), gaussian(), fail_at=7), run)  # state at 4, ledger at 7
    elsewhere()
    method = FakeMethod(Ledger.open(run.ledger, "test"), gaussian())
    outcome = fake_train(method, run)
    assert (outcome.step, outcome.ended) == (6, "budget")
    assert method.calls[0] == "step 5, charged 8"
    assert Ledger.open(run.ledger, "test").events == (gaussian().repeated(9),)


def test_a_run_that_finds_nothing_left_for_its_first_step_ends_in_order(tmp_path, elsewhere):
    run = new_run(tmp_path / "run")
    target = compose_epsilon([gaussian().repeated(3)], DELTA) * 1.0001
    with pytest.raises(RuntimeError):
        fake_train(FakeMethod(fake_ledger(run, target), gaussian(), fail_at=3), run)
    elsewhere()
    assert fake_train(FakeMethod(Ledger.open(run.ledger, "test"), gaussian()), run).ended == "budget"


def test_charges_of_a_continuation_that_saved_nothing_do_not_pay_for_the_old_noise(tmp_path, elsewhere, monkeypatch):
    """State at 4, ledger at 7; a continuation elsewhere is killed; back here the steps 5 to 7 are other reads."""
    run = new_run(tmp_path / "run")
    with pytest.raises(RuntimeError):
        fake_train(FakeMethod(fake_ledger(run), gaussian(), fail_at=7), run)

    def killed(*_):
        raise Stopped

    elsewhere()
    monkeypatch.setattr(StateStore, "save", killed)
    method = FakeMethod(Ledger.open(run.ledger, "test"), gaussian())
    method.noises = (Noise.system(),)
    with pytest.raises(Stopped):
        fake_train(method, run)
    monkeypatch.undo()
    assert not StateStore(run, {"config": "a", "device": "cpu"}, Ledger.open(run.ledger, "test")).load().exact
    fake_train(FakeMethod(Ledger.open(run.ledger, "test"), gaussian()), run)
    assert Ledger.open(run.ledger, "test").events == (gaussian().repeated(7 + 6),)


def test_a_lost_state_costs_its_steps_again_but_not_what_was_released(tmp_path):
    stopped_at_four(tmp_path / "run")
    RunFolder(tmp_path / "run").state.unlink()
    method = resumed(tmp_path / "run")
    assert method.ledger.events == (gaussian(20.0), gaussian(100.0).repeated(4 + 6))


def test_steps_that_were_paid_in_advance_are_paid_again(tmp_path, elsewhere):
    ahead = gaussian(50.0)

    class PaidAhead(FakeMethod):
        def prepare(self):
            self.ledger.release([ahead.repeated(10)], dict, noise=Noise.fixed(1))

        def paid_ahead(self, step):
            return (ahead.repeated(10 - step),)

    run = new_run(tmp_path / "run")
    with pytest.raises(RuntimeError):
        fake_train(PaidAhead(fake_ledger(run), None, fail_at=7), run)
    elsewhere()
    fake_train(PaidAhead(Ledger.open(run.ledger, "test"), None), run)
    assert Ledger.open(run.ledger, "test").events == (ahead.repeated(10 + 6),)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_is_prepared_ends_in_one_line_and_costs_nothing(tmp_path, number):
    class Prepares(FakeMethod):
        def prepare(self):
            def compute():
                if self.fail_at:
                    signal.raise_signal(number)
                return {"mean": torch.ones(2)}

            self.ledger.release([gaussian(2.0)], compute, noise=Noise.fixed(1))

    run = new_run(tmp_path / "run")
    before = signal.getsignal(number)
    outcome = fake_train(Prepares(fake_ledger(run), gaussian(), fail_at=1), run)
    assert signal.getsignal(number) is before
    assert (outcome.step, outcome.ended) == (0, "interrupted")
    assert number.name in outcome.message
    assert f"--resume {run.path}" in outcome.message
    assert "; nothing was released or charged. Continue" in outcome.message
    assert Ledger.open(run.ledger, "test").events == ()
    fake_train(Prepares(Ledger.open(run.ledger, "test"), gaussian()), run, steps=2)
    assert Ledger.open(run.ledger, "test").events == (gaussian(2.0), gaussian().repeated(2))


class Stops(FakeMethod):
    """Is stopped by Ctrl-C while it is prepared or taken up, after what `before` does."""

    def __init__(self, *arguments, before=lambda ledger: None, **options):
        super().__init__(*arguments, **options)
        self.before = before

    def prepare(self):
        self.before(self.ledger)
        signal.raise_signal(signal.SIGINT)

    def load_state(self, state):
        signal.raise_signal(signal.SIGINT)


def released_once(ledger):
    ledger.release([gaussian(2.0)], lambda: {"mean": torch.ones(2)}, noise=Noise.fixed(1))


def unwritten(ledger):
    """The signal comes before the ledger that names the release is written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idpgan.privacy.ledger.write_text_atomic", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        released_once(ledger)


BEFORE = {
    "nothing": (lambda ledger: None, "nothing was released or charged", 0),
    "released once": (released_once, "what was released until then is kept and paid once", 1),
    "released, and not written": (unwritten, "nothing was released or charged", 0),
    "charged alone": (lambda ledger: ledger.charge(gaussian(2.0)), "what was charged until then is spent", 1),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_stands_of_a_run_that_was_stopped_before_its_steps_is_said_as_it_is(tmp_path, name):
    before, said, charges = BEFORE[name]
    run = new_run(tmp_path / "run")
    outcome = fake_train(Stops(fake_ledger(run), gaussian(), before=before), run)
    assert said in outcome.message
    assert outcome.message.count(";") == 1
    found = Ledger.open(run.ledger, "test")
    assert len(found.events) == charges
    assert (found.released() is not None) == ("is kept and paid once" in outcome.message)


def test_a_run_that_is_stopped_while_it_is_taken_up_keeps_its_state(tmp_path):
    run = new_run(tmp_path / "run")
    with pytest.raises(RuntimeError):
        fake_train(FakeMethod(fake_ledger(run), gaussian(), fail_at=7), run)
    state = run.state.read_bytes()
    outcome = fake_train(Stops(Ledger.open(run.ledger, "test"), gaussian()), run)
    assert "before its steps; the state saved last is kept. Continue" in outcome.message
    assert run.state.read_bytes() == state
