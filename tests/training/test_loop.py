"""The order of charge, step and save, and every way in which a run ends."""

from __future__ import annotations

import signal

import pytest
import torch

from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.ledger import BudgetError, Ledger
from idpgan.synthesis.dp_gan import Method as DpGan
from idpgan.training.loop import DivergedError
from idpgan.training.state import StateStore
from idpgan.training.stats import read_stats
from tests.training.toy import DELTA, FakeMethod, fake_ledger, fake_train, gaussian, new_run


def test_every_critic_step_is_charged_before_it_reads(tmp_path):
    run = new_run(tmp_path / "run")
    method = FakeMethod(fake_ledger(run), gaussian())
    outcome = fake_train(method, run, steps=4)
    assert outcome.step == 4
    assert outcome.ended == "finished"
    assert method.calls == [
        "prepare", "step 1, charged 1", "step 2, charged 2", "step 3, charged 3", "step 4, charged 4",
    ]  # fmt: skip


def test_the_charge_is_on_the_disk_before_the_step(tmp_path):
    run = new_run(tmp_path / "run")
    method = FakeMethod(fake_ledger(run), gaussian())
    seen = []
    method.step = lambda step: {"position": torch.tensor(seen.append(Ledger.open(run.ledger, "test").position) or 0)}
    fake_train(method, run, steps=3)
    assert seen == [1, 2, 3]


def test_a_step_that_reads_nothing_private_is_not_charged(tmp_path):
    run = new_run(tmp_path / "run")
    method = FakeMethod(fake_ledger(run), None)
    fake_train(method, run)
    assert method.ledger.events == ()
    assert read_stats(run.stats)[-1]["epsilon"] == 0


def test_a_failure_after_the_charge_over_counts(tmp_path):
    run = new_run(tmp_path / "run")
    method = FakeMethod(fake_ledger(run), gaussian(), fail_at=3)
    with pytest.raises(RuntimeError, match="out of memory"):
        fake_train(method, run)
    assert Ledger.open(run.ledger, "test").position == 3  # two steps were done


def test_it_stops_before_the_step_that_would_overspend(tmp_path):
    run = new_run(tmp_path / "run")
    target = compose_epsilon([gaussian().repeated(7)], DELTA) * 1.0001
    method = FakeMethod(fake_ledger(run, target), gaussian())
    outcome = fake_train(method, run, steps=1000)
    assert (outcome.step, outcome.ended) == (7, "budget")
    assert "after step 7 of 1,000" in outcome.message
    assert f"{target:g}" in outcome.message
    assert [row["step"] for row in read_stats(run.stats)] == [4, 7]
    assert read_stats(run.stats)[-1]["epsilon"] <= target < compose_epsilon([gaussian().repeated(8)], DELTA)


def test_a_resumed_run_whose_budget_is_spent_does_nothing_more(tmp_path):
    run = new_run(tmp_path / "run")
    target = compose_epsilon([gaussian().repeated(3)], DELTA) * 1.0001
    fake_train(FakeMethod(fake_ledger(run, target), gaussian()), run)
    before = run.stats.read_bytes(), run.ledger.read_bytes()
    method = FakeMethod(Ledger.open(run.ledger, "test"), gaussian())
    outcome = fake_train(method, run)
    assert (outcome.step, outcome.ended) == (3, "budget")
    assert method.calls == []
    assert (run.stats.read_bytes(), run.ledger.read_bytes()) == before


@pytest.mark.parametrize("event", [gaussian(1.0), Event.non_private("raw images")])
def test_a_budget_that_covers_no_step_at_all_is_an_error(tmp_path, event):
    run = new_run(tmp_path / "run")
    method = FakeMethod(fake_ledger(run, epsilon=0.5), event)
    with pytest.raises(BudgetError, match=r"single step \(target epsilon = 0.5 at delta = 1e-05"):
        fake_train(method, run)
    assert method.calls == ["prepare"]


def test_steps_replayed_after_a_kill_are_charged_once(tmp_path):
    run = new_run(tmp_path / "run")
    method = FakeMethod(fake_ledger(run), gaussian(), fail_at=7)  # the state stands at 4, the ledger at 7
    with pytest.raises(RuntimeError):
        fake_train(method, run)
    resumed = FakeMethod(Ledger.open(run.ledger, "test"), gaussian())
    fake_train(resumed, run)
    assert resumed.calls[0] == "step 5, charged 5"  # no prepare
    assert resumed.weight == 10
    assert Ledger.open(run.ledger, "test").events == (gaussian().repeated(10),)
    assert [row["loss"] for row in read_stats(run.stats)] == [2.5, 6.5, 9.5]


def test_a_kill_between_the_line_and_the_state_writes_the_line_once(tmp_path, monkeypatch):
    def save(store, saved):
        if saved.step == 8:
            raise RuntimeError("killed")
        original(store, saved)

    original = StateStore.save
    run = new_run(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(StateStore, "save", save)
        with pytest.raises(RuntimeError, match="killed"):
            fake_train(FakeMethod(fake_ledger(run), gaussian()), run)
    assert [row["step"] for row in read_stats(run.stats)] == [4, 8]
    fake_train(FakeMethod(Ledger.open(run.ledger, "test"), gaussian()), run)
    assert [(row["step"], row["loss"]) for row in read_stats(run.stats)] == [(4, 2.5), (8, 6.5), (10, 9.5)]
    assert Ledger.open(run.ledger, "test").position == 10


def test_replayed_steps_fit_a_budget_that_is_spent(tmp_path):
    run = new_run(tmp_path / "run")
    target = compose_epsilon([gaussian().repeated(7)], DELTA) * 1.0001
    method = FakeMethod(fake_ledger(run, target), gaussian(), fail_at=7)
    with pytest.raises(RuntimeError):
        fake_train(method, run)
    outcome = fake_train(FakeMethod(Ledger.open(run.ledger, "test"), gaussian()), run)
    assert (outcome.step, outcome.ended) == (7, "budget")


def test_another_price_in_a_replayed_step_is_refused(tmp_path):
    run = new_run(tmp_path / "run")
    with pytest.raises(RuntimeError):
        fake_train(FakeMethod(fake_ledger(run), gaussian(), fail_at=7), run)
    with pytest.raises(BudgetError, match="Start a new run"):
        fake_train(FakeMethod(Ledger.open(run.ledger, "test"), gaussian(5.0)), run)


def test_a_kill_before_the_first_state_prepares_and_charges_again(tmp_path):
    class Prepares(FakeMethod):
        def prepare(self):
            self.ledger.charge(gaussian(2.0))
            if self.fail_at:
                raise RuntimeError("killed")

    run = new_run(tmp_path / "run")
    with pytest.raises(RuntimeError, match="killed"):
        fake_train(Prepares(fake_ledger(run), gaussian(), fail_at=1), run)
    assert not run.state.exists()
    fake_train(Prepares(Ledger.open(run.ledger, "test"), gaussian()), run, steps=2)
    assert Ledger.open(run.ledger, "test").events == (gaussian(2.0).repeated(2), gaussian().repeated(2))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, number):
    class Interrupted(FakeMethod):
        def step(self, step):
            if step == 6:
                signal.raise_signal(number)
            return super().step(step)

    run = new_run(tmp_path / "run")
    before = signal.getsignal(number)
    outcome = fake_train(Interrupted(fake_ledger(run), gaussian()), run)
    assert signal.getsignal(number) is before
    assert (outcome.step, outcome.ended) == (6, "interrupted")
    assert number.name in outcome.message
    assert f"--resume {run.path}" in outcome.message
    resumed = FakeMethod(Ledger.open(run.ledger, "test"), gaussian())
    assert fake_train(resumed, run).ended == "finished"
    assert resumed.calls[0] == "step 7, charged 7"
    assert resumed.weight == 10
    assert [row["loss"] for row in read_stats(run.stats)] == [2.5, 6.5, 9.5]  # 5 and 6 count in the second mean


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    class Impatient(FakeMethod):
        def step(self, step):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            return super().step(step)

    run, before = new_run(tmp_path / "run"), signal.getsignal(signal.SIGINT)  # ignored where tests run under nohup
    with pytest.raises(KeyboardInterrupt):
        fake_train(Impatient(fake_ledger(run), gaussian()), run)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_nan_statistic_stops_with_step_quantity_and_the_last_good_state(tmp_path):
    run = new_run(tmp_path / "run")
    with pytest.raises(
        DivergedError, match=r"loss is nan on average over the steps 5 to 8\. .* step 4, is kept"
    ) as error:
        fake_train(FakeMethod(fake_ledger(run), gaussian(), nan_at=6), run)
    assert str(run.state) in str(error.value)
    assert "lower learning rate" in str(error.value)
    assert torch.load(run.state, weights_only=True)["method"]["weight"] == 4
    assert [row["step"] for row in read_stats(run.stats)] == [4]


@pytest.mark.parametrize(("value", "ends"), [(9.9e7, "finished"), (1.1e8, "diverged"), (-float("inf"), "diverged")])
def test_a_huge_statistic_counts_as_diverged(tmp_path, value, ends):
    class Huge(FakeMethod):
        def step(self, step):
            return {"loss": torch.tensor(value)}

    run = new_run(tmp_path / "run")
    method = Huge(fake_ledger(run), gaussian())
    if ends == "finished":
        assert fake_train(method, run).ended == ends
    else:
        with pytest.raises(DivergedError, match="loss is"):
            fake_train(method, run)


def test_a_statistic_without_noise_never_ends_a_run(tmp_path):
    """Was a DivergedError: whether there is a release followed an unprotected mean over private images."""

    class Unnoised(FakeMethod):
        UNNOISED = ("loss",)

        def step(self, step):
            return {"loss": torch.tensor(1.1e8)}

    run = new_run(tmp_path / "run")
    assert fake_train(Unnoised(fake_ledger(run), gaussian()), run).ended == "finished"
    assert read_stats(run.stats)[0]["loss"] == pytest.approx(1.1e8)
    assert set(DpGan.UNNOISED) == {"critic_loss", "gradient_norm", "clipped_share"}


@pytest.mark.parametrize("where", ["state", "product"])
def test_a_nan_weight_is_found_although_no_statistic_shows_it(tmp_path, where):
    class Broken(FakeMethod):
        def step(self, step):
            if step == 7 and where == "state":
                self.weight = torch.tensor([1.0, float("inf")])
            elif step == 7:
                torch.nn.init.constant_(self.product.weight, float("nan"))
            return {"loss": torch.tensor(1.0)}

    run = new_run(tmp_path / "run")
    name = "weight" if where == "state" else "product.weight"
    with pytest.raises(DivergedError, match=f"'{name}' holds NaN or infinity at step 8"):
        fake_train(Broken(fake_ledger(run), gaussian()), run)
    assert torch.load(run.state, weights_only=True)["step"] == 4
    assert [row["step"] for row in read_stats(run.stats)] == [4]


def test_callbacks_see_a_tick_whose_state_is_saved(tmp_path):
    run = new_run(tmp_path / "run")
    seen = []
    method = FakeMethod(fake_ledger(run), gaussian())

    def callback(tick):
        saved = torch.load(run.state, weights_only=True)
        seen.append((tick.step, saved["step"], tick.stats, tick.generator is method.product))

    fake_train(method, run, on_tick=[callback])
    assert seen == [(4, 4, {"loss": 2.5}, True), (8, 8, {"loss": 6.5}, True), (10, 10, {"loss": 9.5}, True)]


def test_progress_hears_of_every_step_and_of_the_price_at_every_tick(tmp_path):
    told = []
    run = new_run(tmp_path / "run")
    fake_train(FakeMethod(fake_ledger(run), gaussian()), run, progress=lambda *call: told.append(call))
    prices = [f"epsilon {compose_epsilon([gaussian().repeated(n)], DELTA):.3g}" for n in (4, 8, 10)]
    assert {call[0] for call in told} == {"training steps"}
    assert [call[1] for call in told if call[0] == "training steps" and len(call) == 3] == list(range(1, 11))
    assert [call[1:] for call in told if len(call) == 4 and call[0] == "training steps"] == [
        (0, 10, "epsilon 0"),
        *((step, 10, price) for step, price in zip((4, 8, 10), prices, strict=True)),
    ]
