"""dssgd: distributed selective stochastic gradient descent.

Shokri and Shmatikov 2015, "Privacy-preserving deep learning". Participants with images of their own share one network
through a server. In its turn, a participant takes a share of the server's parameters, goes once through its images by
gradient descent, and uploads a few of the changes, which the server adds. Everything that is uploaded is public; the
images never leave a participant.

With noise the uploads are `sharing.Sharing.release`. Positions are dealt to participants in turn, so under replace-one
an image is in one participant's uploads only: a round costs what one participant's does, and rounds add up. Parameters
that a participant does not take from the server (download_share below 1) stay with it and are in no one else's uploads.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from idpgan.classify.dssgd.config import DssgdRun
from idpgan.classify.training import GivesClassifier
from idpgan.data.images import to_float
from idpgan.data.load import Split, place
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.privacy import Event, Ledger, Noise
from idpgan.privacy.noise import Source
from idpgan.training.method import Stats

_RNG_STREAM = 1  # of training.seed; 0 is the initial weights


class Dssgd(GivesClassifier):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        config: The run's config.
        split: Only its private part is read.
        ledger: Charged by the loop, a round at a time.
        device: Where network and data live; uploads are drawn on the CPU.
        noise: Source of the noise. None = AES-256-CTR.

    Raises:
        ConfigError: If config and data do not fit together.
    """

    Config = DssgdRun

    UNNOISED = ("loss", "uploaded")
    SAVED = ("newest", "local", "rng", "noise")

    def __init__(
        self, config: DssgdRun, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None
    ) -> None:
        super().__init__(config, split, ledger=ledger, device=device, noise=noise)
        self._images = place(split.private, device)
        self.newest = config.classifier(split.image_shape, split.classes).to(device).eval()
        self.sharing = config.sharing(split.image_shape, split.classes)
        self._rng = torch.Generator().manual_seed((config.training.seed + _RNG_STREAM * 0x9E3779B97F4A7C15) % 2**63)
        server = parameters_to_vector(self.newest.parameters()).detach()
        self._local = server.repeat(self.config.participants, 1)  # (P, d)

    @property
    def product(self) -> PrivateClassifier:
        """The server's parameters."""
        return self.newest

    @property
    def noises(self) -> tuple[Noise, ...]:
        """The source of the uploads' noise; none without it."""
        return () if self.sharing.epsilon is None else (self.noise,)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Those of the steps."""
        return tuple(noise.source for noise in self.noises)

    def step_event(self) -> Event:
        """Every round uploads."""
        return self._run.round_event(self._data)

    def shard(self, participant: int) -> Tensor:
        """Return the positions of a participant, int64: every ``participants``-th one, null records among them."""
        return torch.arange(participant, len(self._images), self.config.participants)

    def step(self, step: int) -> Stats:
        """Do a round: each participant downloads, trains, and uploads."""
        many = self.config.participants
        order = torch.arange(many) if self.config.order == "round-robin" else torch.randperm(many, generator=self._rng)
        server = parameters_to_vector(self.newest.parameters()).detach().clone()
        before, losses, uploaded = server.clone(), [], 0
        for participant in order.tolist():
            source = before if self.config.order == "asynchronous" else server
            taken = torch.rand(len(server), generator=self._rng) < self.config.download_share
            start = torch.where(taken.to(self.device), source, self._local[participant])
            trained, loss = self._train(start, self.shard(participant))
            if self.sharing.epsilon is not None:  # whether a run goes on is seen by all: what diverged changes nothing
                trained = torch.where(trained.isfinite(), trained, start)
            self._local[participant] = trained
            change = (self._local[participant] - start).cpu()
            shared = self._upload(change)
            server += shared.to(self.device)
            uploaded += int(shared.count_nonzero())
            losses += [loss] if self.sharing.epsilon is None or bool(loss.isfinite()) else []
        vector_to_parameters(server, self.newest.parameters())
        mean = {"loss": torch.stack(losses).double().nanmean()} if losses else {}
        return {**mean, "uploaded": torch.tensor(uploaded / many)}

    def _upload(self, change: Tensor) -> Tensor:
        """Return what leaves a participant, (d,)."""
        if self.sharing.epsilon is None:
            return self.sharing.select(change, self._rng)
        return self.sharing.release(change[None], self.noise)[0]

    def _train(self, start: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Go once through images from some parameters; return the parameters (d,) and the mean loss.

        Null records are left out after the shuffle: its random numbers are common to all participants, and those that
        others draw may not depend on who is null here.
        """
        vector_to_parameters(start.clone(), self.newest.parameters())
        optimizer = torch.optim.SGD(self.newest.parameters(), self.config.learning_rate)
        total, steps = torch.zeros((), device=self.device), 0
        shuffled = positions[torch.randperm(len(positions), generator=self._rng)]
        shuffled = shuffled if self._images.null is None else shuffled[~self._images.null.cpu()[shuffled]]
        for chosen in shuffled.split(self.config.local_batch_size):
            if len(chosen) == 0:
                continue
            batch = self._images.select(chosen).to(self.device)
            loss = cross_entropy(self.newest(to_float(batch.images)), cast(Tensor, batch.labels))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total, steps = total + loss.detach(), steps + 1
        return parameters_to_vector(self.newest.parameters()).detach().clone(), total / steps
