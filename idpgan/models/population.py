"""A generator that is a simulator and a population of its settings: an image is a small variation of a member's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from idpgan.models.config import ModelConfig, classes_of
from idpgan.models.generator import Generator
from idpgan.models.simulators import PhotoSimulator, build_simulator, uniform_of


class PopulationGenerator(Generator):
    """Draw a member of the image's class by its share, vary its numbers, and let the simulator draw them.

    The first latent number chooses the member, the others vary it.

    Args:
        config: The [model] section: ``codes`` members a class, ``simulator`` and ``variation``.
        image_shape: (C, H, W) in px of any size that the simulator draws.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Not used: before `set_population` all members are the simulator's middle.

    Attributes:
        members: (max(num_classes, 1), codes, numbers): what the simulator draws them from.
        shares: (max(num_classes, 1), codes): how often each is drawn, at least 0; a row of zeros is uniform.
        simulator: In eval mode; of "public" it holds the image of every member, and no other.
    """

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        rows, codes = max(classes_of(config, num_classes), 1), config.codes
        simulator = build_simulator(config, image_shape, rows * codes)
        super().__init__(config, image_shape, num_classes, latent_dim=1 + simulator.numbers)
        self.choosing = (0,)
        self.simulator = simulator
        self.members = nn.Parameter(torch.zeros(rows, codes, simulator.numbers))
        self.shares = nn.Parameter(torch.ones(rows, codes))

    def set_population(self, members: Tensor, shares: Tensor, photos: Tensor | None = None) -> None:
        """Set members (rows, codes, numbers), shares (rows, codes), and of "public" each member's image.

        ``photos`` is uint8 (rows * codes, C, H, W); members then choose their own, whatever they chose before.
        """
        with torch.no_grad():
            self.members.copy_(members)
            self.shares.copy_(shares)
            if isinstance(self.simulator, PhotoSimulator) and photos is not None:
                self.simulator.photos.copy_(photos)
                own = self.simulator.choosing(torch.arange(len(photos)))
                self.members[:, :, 0] = own.view(self.shares.shape)

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """See `Generator.forward`."""
        rows = torch.zeros(len(z), dtype=torch.int64, device=z.device) if labels is None else labels
        heights = self.shares.clamp(min=0).double().cumsum(1)
        heights = torch.where(heights[:, -1:] > 0, heights, torch.ones_like(heights).cumsum(1))
        place = uniform_of(z[:, 0]).double()[:, None] * heights[rows, -1:]
        chosen = torch.searchsorted(heights[rows], place, right=True)[:, 0].clamp(max=self.shares.shape[1] - 1)
        return self.simulator(self.simulator.vary(self.members[rows, chosen], z[:, 1:], self.config.variation))
