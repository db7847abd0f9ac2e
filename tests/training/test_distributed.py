"""Two processes are one run: one noise, one ledger, the sums and the weights of one process."""

from __future__ import annotations

import json

import pytest
import torch

from idpgan import trainer
from idpgan.errors import InputError
from idpgan.kinds import verify
from idpgan.privacy import DPSGDPlan, Noise
from idpgan.ranks import ALONE, Ranks, launched, refuse_several
from idpgan.synthesis.networks import AdamSettings, Generators
from idpgan.training.distributed import _without_keys, check_own_gpu
from tests.training import pairs
from tests.training.pairs import config_of, in_pair
from tests.training.toy import CPU, digits

TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
FAST = ["dp-gan", "idp-gan-aggregate", "wgan-gp"]
SLOW = ["opacus", "separate", "in place", "evolution", "dp-sgd", "scattering-linear"]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return in_pair(pairs.numbers, tmp_path_factory.mktemp("pair"))


def test_the_noise_of_two_ranks_has_the_variance_of_one(numbers):
    first, second = (result["noise"] for result in numbers)
    assert first["variance"] == pytest.approx(4.0, rel=0.05)  # sigma^2; five standard deviations of 20,000 numbers
    assert first["first"].tolist() == second["first"].tolist()
    # The control: a draw on each rank.
    assert numbers[0]["noise of each"]["variance"] == pytest.approx(8.0, rel=0.05)


@pytest.mark.parametrize("size", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_ranks_share_the_noise_of_a_step_and_release_the_bits_of_one_process(size, tmp_path):
    """The noise of each number exactly once, whoever draws it, and what is not so shows."""
    results = in_pair(pairs.shards, tmp_path, size=size)
    alone, count = results[0]["alone"], len(results[0]["alone"])
    share = Ranks(size - 1, size).share(pairs.BLOCKS)  # of the rank that makes the mistakes
    others = torch.arange(count) < share.start * pairs.BLOCK
    for result in results:
        assert torch.equal(result["shared"], alone)
        assert torch.tensor(result["two draws of a block"] + result["bad part"]).isnan().all()
        for mistake in ("noise twice", "kept noise"):  # NaN and counts do not tell, the bits do
            assert torch.equal(result[mistake][others], alone[others])
            assert (result[mistake][~others] != alone[~others]).double().mean() > 0.99
    assert results[0]["next"] == results[0]["next alone"]  # the next step's noise is that of one process too


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_rank_that_is_killed_over_its_noise_leaves_no_sum_to_the_other(moment, tmp_path):
    first, second = in_pair(pairs.lost, tmp_path, tmp_path / "left.pt", moment)
    assert first["error"] == "LostRankError"
    assert second == {}
    assert torch.load(tmp_path / "left.pt", weights_only=True) == {"moved": False, "gradient": False}


def test_a_step_of_two_ranks_is_the_step_of_one(numbers):
    for result in numbers:
        difference = (result["sharded"] - numbers[0]["alone"]).abs().max()
        assert difference < 1e-5 < numbers[0]["alone"].abs().max()
    assert numbers[0]["sharded"].tolist() == numbers[1]["sharded"].tolist()


def test_each_drawn_record_is_in_one_share(numbers):
    shares = [result["drawn"] for result in numbers]
    assert shares[0] + shares[1] == numbers[0]["drawn alone"]
    assert max(shares[0]) < 51 <= min(shares[1])  # by position, whoever else is drawn


def test_votes_are_counted_on_both_ranks_and_get_one_noise(numbers):
    for result in numbers:
        assert result["votes"] == numbers[0]["votes alone"]


def test_parts_add_up_with_their_gradients_and_texts_go_round(numbers):
    assert [result["whole"] for result in numbers] == [[81.0, 54.0]] * 2
    assert [result["texts"] for result in numbers] == [["", "äää"]] * 2


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return folder, in_pair(pairs.runs, folder / "pair", folder, FAST)


@pytest.mark.parametrize("name", FAST)
def test_both_ranks_end_with_equal_weights_and_the_ledger_of_one_process(fast, name, small_run):
    folder, (first, second) = fast
    check(folder / name, first[name], second[name], small_run(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_other_methods_too(name, small_run, tmp_path):
    first, second = in_pair(pairs.runs, tmp_path / "pair", tmp_path, [name])
    own = name in pairs.RUNS
    alone = trainer.start(config_of(name), tmp_path / "alone").run.path if own else small_run(name)
    check(tmp_path / name, first[name], second[name], alone)


def check(path, first, second, alone):
    assert first == second
    assert verify(path).problems == ()
    assert json.loads((path / "environment.json").read_text())["processes"] == 2
    assert charges(path) == charges(alone)


def charges(path):
    return {
        name: value
        for name, value in json.loads((path / "state" / "ledger.json").read_text()).items()
        if name not in ("state", "release", "checksum")  # the hashes of what each of them drew
    }


def test_a_rank_with_other_weights_ends_the_run_at_the_next_save(tmp_path):
    first, _ = in_pair(pairs.other_weights, tmp_path / "pair", tmp_path)
    assert first["error"] == "RanksDifferError"
    assert "rank 1 holds other weights" in first["message"]
    assert json.loads((tmp_path / "run" / "state" / "ledger.json").read_text())["state"]  # of step 0
    assert not (tmp_path / "run" / "stats.jsonl").exists()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_run_and_what_was_saved_goes_on_alone(tmp_path, victim):
    results = in_pair(pairs.killed, tmp_path / "pair", tmp_path, 6, victim)
    assert results[victim] == {}
    assert results[1 - victim]["error"] == "LostRankError"
    finished = trainer.resume(tmp_path / "run")
    assert (finished.outcome.ended, finished.outcome.step) == ("finished", 6)
    ledger = json.loads((tmp_path / "run" / "state" / "ledger.json").read_text())
    assert sum(entry["count"] for entry in ledger["repeated"]) == 2  # steps 5 and 6 were charged, and taken again
    assert sum(entry["count"] for entry in ledger["events"]) == 8


def test_what_one_rank_refuses_is_said_once_and_nothing_is_written(tmp_path):
    first, second = in_pair(pairs.no_data, tmp_path / "pair", tmp_path)
    assert first == {"error": "InputError", "message": "rank 1: the data is not here."}
    assert second == {"exit": 2}
    assert not (tmp_path / "run").exists()


def test_a_method_without_steps_is_refused(tmp_path):
    first, second = in_pair(pairs.no_steps, tmp_path / "pair", tmp_path)
    assert "'gaussian' has no steps" in first["message"]
    assert second == {"exit": 2}
    assert not (tmp_path / "run").exists()


# One process ---------------------------------------------------------------------------------------------------------


def test_shares_are_all_rows_once():
    for num in (0, 1, 7, 64):
        for size in (1, 2, 3, 8):
            ranks = [Ranks(rank, size) for rank in range(size)]
            assert [row for each in ranks for row in range(num)[each.share(num)]] == [*range(num)]
            assert {each.rows(num) for each in ranks} <= {num // size, -(-num // size)}


def test_each_rank_draws_latent_vectors_of_its_own_and_the_common_numbers_stay_common():
    config, both = config_of("dp-gan"), []
    for rank in range(2):
        networks = Generators(
            config, digits().shape, device=CPU, adam=AdamSettings(1e-3, 0.0, 0.9), ema_decay=0.9, stream=2
        )
        networks.ranks = Ranks(rank, 2)
        both.append((networks.latents(50, networks.own_rng()), networks.latents(50), networks.rng.get_state()))
    (mine, common, state), (other, common_too, state_too) = both
    assert not torch.isin(mine, other).any()
    assert common.equal(common_too)
    assert state.equal(state_too)


def test_a_rank_that_gets_no_noisy_gradient_moves_no_weight_to_a_number():
    class Deaf(Ranks):
        """Another rank than 0 to which nothing comes."""

        def sum(self, tensors):
            pass

        def from_first(self, tensors):
            pass

    weight, sums = torch.zeros(3, requires_grad=True), {"w": torch.ones(3, dtype=torch.float64)}
    plan = DPSGDPlan(0.5, 1.0, 1, 2.0, ranks=Deaf(1, 2))
    plan.noisy_step(torch.optim.SGD([weight], 1.0), {"w": weight}, sums, Noise.fixed(1))
    assert weight.isnan().all()


def test_the_keys_of_rank_0_stay_there():
    noise = Noise.system()
    state = {"pace": [1, 2], "dp_gan": {"noise": noise.state(), "w": torch.ones(2)}, "noise": Noise.fixed(1).state()}
    sent = _without_keys(state)
    assert noise.state()["key"] not in str(sent)
    assert sent["dp_gan"]["noise"] == {**noise.state(), "key": None}
    assert sent["noise"] == state["noise"]  # whoever knows the seed knows it anyway
    other = Noise.system()
    other.load_state(sent["dp_gan"]["noise"])
    with pytest.raises(RuntimeError, match="erased"):  # until it has a key of its own
        other.normal((1,))
    other.rekey()
    assert other.normal((8,)).tolist() != noise.normal((8,)).tolist()


def test_a_gpu_by_its_number_is_refused_to_several():
    check_own_gpu(torch.device("cuda:1"), ALONE)
    with pytest.raises(InputError, match="cuda:1 is one GPU"):
        check_own_gpu(torch.device("cuda:1"), Ranks(0, 2))


def test_torchrun_is_seen_by_its_variables():
    assert launched({}) == (0, 1, 0)
    assert launched({"WORLD_SIZE": "8"}) == (0, 1, 0)  # some clusters set it for everybody
    assert launched(TORCHRUN) == (1, 2, 1)
    with pytest.raises(InputError, match="do not fit together"):
        launched(TORCHRUN | {"RANK": "2"})


def test_another_launcher_is_refused_and_does_not_make_every_process_the_only_one():
    foreign = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"}
    with pytest.raises(InputError, match="RANK = 1 of WORLD_SIZE = 2 without LOCAL_RANK"):
        launched(foreign)
    assert launched(foreign | {"RANK": "0", "WORLD_SIZE": "1"}) == (0, 1, 0)


def test_other_commands_are_refused_once(monkeypatch):
    refuse_several("attack")
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        refuse_several("attack")
    assert ended.value.code == 0  # a failure would make torchrun stop rank 0 before it has said why
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(InputError, match=r"torchrun started 2.*train alone shares work"):
        refuse_several("attack")


def test_alone_nothing_is_told(monkeypatch):
    monkeypatch.setattr(Ranks, "_number", lambda *_: pytest.fail("nobody is there"))
    with ALONE.together(1):
        pass
    ALONE.end()
    assert not ALONE.busy
