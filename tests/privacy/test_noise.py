import json
import os

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import chisquare, kstest, norm, uniform

from idpgan.device import computing_on
from idpgan.errors import InputError
from idpgan.privacy import Noise, discrete
from idpgan.privacy.discrete import discrete_laplace, rounded_gaussian


def test_the_stream_is_aes_256_ctr():
    # NIST SP 800-38A, F.5.5: CTR-AES256 keystream = ciphertext xor plaintext; here checked against the library with
    # the zero counter that Noise starts from.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(64))
    assert Noise(key, private=False).words(8).tobytes() == stream


def test_system_noise_never_repeats_and_fixed_noise_does():
    assert not torch.equal(Noise.system().normal((8,)), Noise.system().normal((8,)))
    assert torch.equal(Noise.fixed(3).normal((8,)), Noise.fixed(3).normal((8,)))
    assert not torch.equal(Noise.fixed(3).normal((8,)), Noise.fixed(4).normal((8,)))
    # The whole seed counts, not its low 32 bits as in torch's CPU generator.
    assert not torch.equal(Noise.fixed(1).normal((8,)), Noise.fixed(1 + 2**32).normal((8,)))


def test_reports_can_tell_the_sources_apart():
    assert Noise.system().private
    assert not Noise.fixed(0).private
    assert "FIXED" in Noise.fixed(0).name


@pytest.mark.parametrize("drawn_before", [0, 1, 2, 7])
def test_the_state_continues_the_stream(drawn_before):
    noise = Noise.fixed(5)
    noise.uniform((drawn_before,))
    state = noise.state()
    expected = noise.normal((5,)), noise.integers(10, (5,))
    restored = Noise.fixed(99)
    restored.load_state(state)
    assert torch.equal(restored.normal((5,)), expected[0])
    assert torch.equal(restored.integers(10, (5,)), expected[1])


def test_a_foreign_state_is_refused():
    with pytest.raises(InputError, match="philox"):
        Noise.fixed(1).load_state({"source": "philox"})
    with pytest.raises(InputError, match="fixed"):
        Noise.system().load_state(Noise.fixed(1).state())


def test_uniform_and_normal_have_their_distributions():
    noise = Noise.fixed(11)
    flat, bell = noise.uniform((50_001,)).numpy(), noise.normal((50_001,)).numpy()
    assert flat.min() > 0
    assert flat.max() < 1
    assert kstest(flat, uniform.cdf).pvalue > 1e-3
    assert kstest(bell, norm.cdf).pvalue > 1e-3
    for wrong in (norm(scale=0.95), norm(scale=1.05), norm(loc=0.05)):  # must be rejected
        assert kstest(bell, wrong.cdf).pvalue < 1e-6
    assert abs(np.corrcoef(bell[:-1], bell[1:])[0, 1]) < 5 / 50_000**0.5


@pytest.mark.parametrize("below", [1, 2, 3, 10, 1000])
def test_integers_are_uniform(below):
    draws = Noise.fixed(7).integers(below, (20_000,)).numpy()
    assert set(np.unique(draws)) <= set(range(below))
    if below > 1:
        counts = np.bincount(draws, minlength=below)
        assert chisquare(counts).pvalue > 1e-3
        skewed = np.concatenate([draws, np.zeros(2000, dtype=int)])  # a biased stream must be rejected
        assert chisquare(np.bincount(skewed, minlength=below)).pvalue < 1e-6


def test_integers_reject_instead_of_folding():
    # below = 3/16 of 2^64: a plain modulo of 64 bits would favor the lowest third of the values by 6 to 5.
    below = 3 << 60
    draws = Noise.fixed(8).integers(below, (20_000,)).double().numpy() / below
    assert kstest(draws, uniform.cdf).pvalue > 1e-3
    folded = Noise.fixed(8).words(20_000) % np.uint64(below) / below
    assert kstest(folded, uniform.cdf).pvalue < 1e-6
    with pytest.raises(ValueError, match="below"):
        Noise.fixed(8).integers(0, (1,))


@pytest.mark.parametrize(("word", "value"), [(0, 2.0**-53), ((1 << 64) - 1, 1 - 2.0**-53)])
def test_uniform_is_never_0_and_never_1(monkeypatch, word, value):
    noise = Noise.fixed(0)
    monkeypatch.setattr(Noise, "words", lambda self, count: np.full(count, word, dtype=np.uint64))
    assert noise.uniform((3,)).tolist() == [value] * 3
    assert noise.normal((4,)).isfinite().all()
    assert (np.float64(word >> 11) + 0.5) * 2.0**-53 in (2.0**-54, 1.0)  # negative control: 53 bits round up to 1


def test_a_ratchet_is_deterministic_one_way_and_forgets_how_much_was_drawn():
    noise, other = Noise.fixed(5), Noise.fixed(5)
    drawn = noise.normal((100,))
    before = noise.state()
    for source in (noise, other):
        source.ratchet()
    assert noise.state() == other.state()
    assert noise.state()["key"] != before["key"]
    assert noise.state()["blocks"] == 0
    assert torch.equal(noise.normal((5,)), other.normal((5,)))
    # The holder of the state after the ratchet cannot rewind to the counter of the draw; of the one before, he can.
    for state, equal in ((before, True), (noise.state(), False)):
        thief = Noise.fixed(0)
        thief.load_state({**state, "blocks": 0})
        assert torch.equal(thief.normal((100,)), drawn) is equal


def test_an_erased_source_holds_no_key_and_draws_nothing():
    noise = Noise.system()
    noise.normal((3,))
    noise.erase()
    assert noise.erased
    assert noise.state()["key"] is None
    noise.ratchet()
    with pytest.raises(RuntimeError, match="erased"):
        noise.uniform((1,))
    restored = Noise.system()
    restored.load_state(noise.state())
    assert restored.erased


def test_a_rekey_is_fresh_for_the_system_and_leaves_a_fixed_seed():
    system, fixed = Noise.system(), Noise.fixed(3)
    states = system.state(), fixed.state()
    system.rekey()
    fixed.rekey()
    assert system.state()["key"] != states[0]["key"]
    assert fixed.state() == states[1]


def first_words(sources) -> list[bytes]:
    return [source.words(4).tobytes() for source in sources]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_draws_other_noise():
    sources = [Noise.system(), Noise.fixed(3), Noise.system()]
    sources[2].erase()
    sources[0].words(6)  # in the middle of a stream
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writing, b"".join([*first_words(sources[:2]), bytes([sources[2].erased])]))
        finally:
            os._exit(0)
    os.wait()
    of_child = os.read(reading, 1000)
    os.close(reading), os.close(writing)
    system, fixed = first_words(sources[:2])
    assert of_child[:32] != system
    assert of_child[32:64] == fixed  # whoever knows the seed knows it all, in one process as in two
    assert of_child[64:] == b"\x01"


# Parts of the stream, for threads -------------------------------------------------------------------------------------


def test_parts_are_disjoint_places_of_one_stream_and_it_goes_on_after_them():
    key = bytes(range(32))
    noise = Noise(key, private=False)
    noise.words(3)  # takes two blocks
    parts = noise.parts(3)
    for source, start in (*zip(parts, [2, 2 + 2**32, 2 + 2**33], strict=True), (noise, 2 + 3 * 2**32)):
        counter = modes.CTR(start.to_bytes(16, "big"))
        assert source.words(4).tobytes() == Cipher(algorithms.AES(key), counter).encryptor().update(bytes(32))


def test_a_part_that_is_used_up_draws_nothing():
    (part,) = Noise.fixed(1).parts(1)
    part._blocks += 2**32 - 2
    part.words(4)
    with pytest.raises(RuntimeError, match="used up"):
        part.words(1)


@pytest.mark.parametrize("sampler", [rounded_gaussian, discrete_laplace])
def test_any_number_of_threads_draws_the_same_numbers(sampler, monkeypatch):
    monkeypatch.setattr(discrete, "BLOCK", 1000)
    found = {}
    for threads in (1, 2, 3, 8, 16):
        noise = Noise.fixed(3)
        with computing_on(threads):
            found[threads] = sampler(1 << 20, 16_400, noise), noise.state()
    numbers, state = found[1]
    assert all(torch.equal(numbers, other) and state == at for other, at in found.values())
    assert len(numbers.unique()) > 16_000  # no block comes twice
    noise = Noise.fixed(3)
    again = [
        sampler(1 << 20, len(part), source) for part, source in zip(numbers.split(1000), noise.parts(17), strict=True)
    ]
    assert torch.equal(torch.cat(again), numbers)  # a shard can be drawn by itself


def test_threads_draw_what_was_drawn_before_a_kill(monkeypatch):
    monkeypatch.setattr(discrete, "BLOCK", 1000)
    noise = Noise.fixed(3)
    noise.uniform((5,))
    state = noise.state()
    with computing_on(4):
        numbers = rounded_gaussian(1 << 20, 5000, noise)
    noise = Noise.fixed(9)
    noise.load_state(json.loads(json.dumps(state)))  # as a run's folder keeps it
    assert torch.equal(rounded_gaussian(1 << 20, 5000, noise), numbers)


def test_what_fails_in_one_of_the_threads_fails_the_draw(monkeypatch):
    monkeypatch.setattr(discrete, "BLOCK", 1000)
    whole = Noise.integers

    def failing(self, below, shape):
        if self._blocks >> 32 == 2:
            raise OSError("no bits")
        return whole(self, below, shape)

    monkeypatch.setattr(Noise, "integers", failing)
    with computing_on(3), pytest.raises(OSError, match="no bits"):
        rounded_gaussian(1 << 20, 5000, Noise.fixed(3))
