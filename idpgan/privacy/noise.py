"""The sources of randomness for privacy: seeded by the operating system, never by the model seed.

torch's CPU generator is a Mersenne Twister that uses the low 32 bits of its seed: an attacker can try all of them and
subtract the noise. Releases therefore draw from AES-256 in counter mode under a fresh 256-bit key.
`idpgan.privacy.discrete` turns these bits into Laplace and Gaussian numbers.

What is drawn is a function of key and place in the stream. So threads may draw its `parts` in any order.

Keys do not outlive their use. `Noise.ratchet` replaces a key by its hash after every step of a run, so a saved state
cannot give back the noise of earlier steps. `Noise.erase` drops the key when the run has ended. A forked process draws
under a key of its own. A fixed seed is ratcheted too, which is deterministic, but a forked process keeps its stream:
whoever knows the seed knows the whole stream anyway, and tests rely on it.

The source is the same whatever device computes: numbers are drawn on the CPU and copied (`idpgan.device.sent`). A GPU's
own generator has 64 bits of key at most, is not cryptographic, and its normal numbers are floating point: exact noise
of steps cannot be made of it.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from idpgan.errors import InputError
from idpgan.lazy import torch
from idpgan.privacy.event import MOST

_BLOCK_BYTES = 16  # AES block = two 64-bit words
_ZEROS = memoryview(bytes(1 << 20))  # encrypted, they are the stream
_PART = 1 << 32  # blocks of a part of the stream: 64 GiB, for which nothing asks
PLACE_BYTES = 32 + _BLOCK_BYTES  # of a key and a place in its stream
_RATCHET = b"idpgan noise ratchet"


class Source(NamedTuple):
    """What a report says of a source of noise."""

    name: str
    private: bool


SYSTEM = Source("AES-256-CTR, 256 bits from the operating system", True)
ON_GPU = Source(
    "AES-256-CTR, 256 bits from the operating system (computed on a GPU: a stand-in has run our tests, no real one)",
    True,
)
FIXED = Source("AES-256-CTR, FIXED SEED", False)
SOURCES = SYSTEM, ON_GPU, FIXED


class Noise:
    """A source of noise: AES-256 in counter mode on the CPU.

    Attributes:
        source: What a report says of it: its name, and whether it is private. A fixed seed is not: whoever knows it can
            subtract the noise.
        erased: Whether the key is erased, so that nothing can be drawn any more.
    """

    _kind = "aes-256-ctr"  # of the source, in a saved state

    def __init__(self, key: bytes, *, private: bool) -> None:
        """Start the stream of a 32-byte key, and register it, so that a forked process gives it another key."""
        self.source = SYSTEM if private else FIXED
        self.name, self.private = self.source
        self._start(key)
        _ALIVE.add(self)

    @property
    def device(self) -> torch.device:
        """Where numbers are drawn: the CPU."""
        return torch.device("cpu")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse `copy` and `pickle`, also of whatever holds this source."""
        raise InputError(
            "a source of noise, and whatever draws from it, cannot be copied or pickled: the copy would add the same "
            "noise to other values, and the difference of both answers would hold none. Make a new one; a stream goes "
            "on from its state() by from_state()."
        )

    @staticmethod
    def system() -> Noise:
        """Return the stream of a fresh key from the operating system: the source of every release."""
        return Noise(secrets.token_bytes(32), private=True)

    @staticmethod
    def fixed(seed: int) -> Noise:
        """Return a reproducible stream for tests and audits; a release with it is marked not private."""
        key = hashlib.sha256(f"idpgan fixed noise {seed}".encode()).digest()
        return Noise(key, private=False)

    def _start(self, key: bytes | None, blocks: int = 0, end: int | None = None) -> None:
        self._key, self._blocks, self._end, self.erased = key, blocks, end, key is None
        self._stream: CipherContext | None = None  # created at the first draw: between most ratchets nothing is drawn

    def words(self, count: int) -> np.ndarray:
        """Return ``count`` uniform 64-bit words, uint64 (count,)."""
        if self._stream is None:
            if self._key is None:
                raise RuntimeError("the key of this noise source was erased when its run ended; nothing can be drawn.")
            counter = modes.CTR(self._blocks.to_bytes(_BLOCK_BYTES, "big"))
            self._stream = Cipher(algorithms.AES(self._key), counter).encryptor()
        blocks = _blocks_of(count)
        self._blocks += blocks
        if self._end is not None and self._blocks > self._end:
            raise RuntimeError("a part of a stream of noise is used up; the next numbers would be those of another.")
        size = blocks * _BLOCK_BYTES
        drawn = np.empty(size + _BLOCK_BYTES, dtype=np.uint8)  # the cipher asks for room for one block more
        for start in range(0, size, len(_ZEROS)):
            self._stream.update_into(_ZEROS[: size - start], drawn[start:].data)
        return drawn[: 8 * count].view(np.uint64)

    def parts(self, count: int) -> list[Noise]:
        """Return sources that draw from the next ``count`` parts of the stream, 2^32 blocks each, in threads or not.

        The parts are disjoint, and this source goes on after the last one: no word is ever drawn twice.
        """
        starts = [self._blocks + number * _PART for number in range(count)]
        self._start(self._key, self._blocks + count * _PART)
        sources = [type(self)(b"", private=self.private) for _ in starts]
        for source, start in zip(sources, starts, strict=True):
            source._start(self._key, start, start + _PART)
        return sources

    def handed_on(self, count: int) -> torch.Tensor:
        """Leave the next ``count`` parts to other processes: return key and place for `taken_over`.

        uint8 (`PLACE_BYTES`,), secret. This source goes on after the last one, as after `parts`: where one that drew
        all would.
        """
        if self._key is None:
            raise RuntimeError("the key of this noise source was erased when its run ended; nothing can be drawn.")
        place = self._key + self._blocks.to_bytes(_BLOCK_BYTES, "big")
        self._start(self._key, self._blocks + count * _PART)
        return torch.frombuffer(bytearray(place), dtype=torch.uint8)

    @classmethod
    def taken_over(cls, place: torch.Tensor, count: int, *, private: bool) -> Noise:
        """Return the source of the ``count`` parts that `handed_on` has left: the same for all who take it over."""
        content = place.numpy().tobytes()
        source, start = cls(b"", private=private), int.from_bytes(content[32:], "big")
        source._start(content[:32], start, start + count * _PART)
        return source

    def uniform(self, shape: Sequence[int]) -> torch.Tensor:
        """Return float64 numbers in the open interval (0, 1), of a word each: 52 bits and a half, never 0, never 1."""
        bits = self.words(math.prod(shape)) >> np.uint64(12)  # with 53 bits and a half, the largest would round to 1
        return torch.from_numpy((bits + 0.5) * 2.0**-52).reshape(tuple(shape))

    def integers(self, below: int, shape: Sequence[int]) -> torch.Tensor:
        """Return int64 numbers uniform on 0 .. below - 1, 1 <= below <= 2^62.

        A number takes one word; one that would favor the lowest numbers is drawn again.
        """
        if not 1 <= below <= MOST:
            raise ValueError(f"integers: below = {below} must lie in 1 .. 2^62.")
        words = self.words(math.prod(shape))
        if below & (below - 1) == 0:  # a power of two: no word is rejected
            return torch.from_numpy((words & np.uint64(below - 1)).view(np.int64)).reshape(tuple(shape))
        limit = np.uint64((1 << 64) // below * below - 1)  # the last value before a partial copy of the range begins
        rejected = np.nonzero(words > limit)[0] if words.max(initial=0) > limit else ()
        while len(rejected):
            words[rejected] = self.words(len(rejected))
            rejected = rejected[words[rejected] > limit]
        multiples = words // np.uint64(below)  # NumPy divides by one number in vectors, and takes no remainder so
        multiples *= np.uint64(below)
        words -= multiples
        return torch.from_numpy(words.view(np.int64)).reshape(tuple(shape))

    def normal(self, shape: Sequence[int]) -> torch.Tensor:
        """Return float64 standard normal numbers (floating point: see docs/reference/pitfalls.md), by Box-Muller."""
        count = math.prod(shape)
        return box_muller(self.uniform((count + count % 2,)))[:count].reshape(tuple(shape))

    def laplace(self, shape: Sequence[int]) -> torch.Tensor:
        """Return float64 Laplace numbers of scale 1 (floating point: see docs/reference/pitfalls.md)."""
        first, second = self.uniform((2, *shape))
        return second.div_(first).log_()  # log u' - log u: a difference of two exponentials is Laplace

    def rekey(self) -> None:
        """Continue under a fresh key from the operating system; a fixed seed stays as it is."""
        if self.private:
            self._start(secrets.token_bytes(32))

    def state(self) -> dict[str, Any]:
        """Return the key and the position in its stream. Secret: it lets its holder subtract later noise."""
        key = None if self._key is None else self._key.hex()
        return {"source": self._kind, "key": key, "blocks": self._blocks, "private": self.private}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue at the saved position.

        Raises:
            InputError: If the state is of another kind of source, or differs in whether the seed is fixed.
        """
        if state.get("source") != self._kind:
            raise InputError(
                f"the saved noise comes from {state.get('source')!r}, and this version draws from {self._kind!r} on "
                "every device; start anew."
            )
        if state["private"] is not self.private:
            raise InputError(
                "the saved noise state and this run differ in whether the noise seed is fixed; start anew."
            )
        self._start(None if state["key"] is None else bytes.fromhex(state["key"]), int(state["blocks"]))

    def ratchet(self) -> None:
        """Replace the key by SHA-256(tag, key), counter 0, whatever was drawn: earlier numbers are out of reach."""
        if self._key is not None:
            self._start(hashlib.sha256(_RATCHET + self._key).digest())

    def erase(self) -> None:
        """Drop the key for good."""
        self._start(None)


def _blocks_of(words: int) -> int:
    """Return how much of the stream one draw of so many words takes."""
    return (words + 1) // 2


_ALIVE: weakref.WeakSet[Noise] = weakref.WeakSet()


def _rekey_all() -> None:
    """Give every source of a forked process its own key: noise drawn in two processes must never be the same."""
    for noise in list(_ALIVE):
        if not noise.erased:
            noise.rekey()


os.register_at_fork(after_in_child=_rekey_all)


def box_muller(uniform: torch.Tensor) -> torch.Tensor:
    """Return standard normal numbers, float64 (..., 2 n), each row a function of the same row of uniform numbers."""
    first, second = uniform.chunk(2, -1)
    radius, angle = (-2 * first.log()).sqrt_(), second * (2 * torch.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)
