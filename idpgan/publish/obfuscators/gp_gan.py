"""GP-GAN: a face drawn from landmarks, which keeps an attribute.

Di, Sindagi, Patel, "GP-GAN: gender preserving GAN for synthesizing faces from landmarks" (ICPR 2018), arXiv:1710.00962.
A generator (U-Net with dense blocks) maps the heat map of a face's landmarks to a face. It minimizes ``L_A + lambda_P
L_P + lambda_C L_C + lambda_1 L_1``: the adversarial loss ``-log D(G)`` of a discriminator of patches; the L1 distance
of features V of a fixed network; the cross-entropy of a fixed classifier C of the attribute, with C(x) of the real face
as the target; the L1 distance of pixels. The paper claims that the gender is recognized in more than 90 % of the drawn
faces.

The attribute is the label to be kept: any label that landmarks determine, the gender of the paper where a column says
it. Equation 20 of our notes prints log C for log(1 - C) in its second term. C and V are VGG-16 in the paper;
here C is the convolutional classifier of `idpgan.models`, trained on the same faces first, and V its first two
convolutions. Our notes on the paper give neither layer sizes nor the lambdas, so both are our own. One channel holds
the heat of all landmarks, a normal density of `Config.sigma` px around each, so that the number of landmarks is free
and fractions of a pixel count.
"""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, l1_loss, softplus
from torch.optim.lr_scheduler import LambdaLR

from idpgan.models.classifier import build_classifier
from idpgan.models.optimizers import Adam
from idpgan.progress import Progress
from idpgan.publish.obfuscators.networks import TrainedObfuscator, Training, batches, convolution, doubling, update
from idpgan.publish.obfuscators.obfuscator import without_proof
from idpgan.training.fit import FitConfig, fit_classifier

_LAYERS = 2  # layers of a dense block
_GRAIN = 0.05  # standard deviation of the noise on C's input, in [-1, 1]
_SHIFT = 16  # C's input is shifted by up to a sixteenth of a side
_SEEN = 6  # modules of the classifier's body that make V: two convolutions


class GpGanConfig(Training):
    """Options of `gp-gan`.

    Attributes:
        adversarial: Weight of L_A; the paper's 1 stands for the scale of the others.
        perceptual: lambda_P.
        attribute: lambda_C.
        pixels: lambda_1, of pixels in [-1, 1].
        sigma: Standard deviation of a landmark's heat, in px.
        classifier_epochs: Passes over the images that C is trained with.
    """

    adversarial: float = pydantic.Field(0.03, ge=0)
    perceptual: float = pydantic.Field(1.0, ge=0)
    attribute: float = pydantic.Field(1.0, ge=0)
    pixels: float = pydantic.Field(10.0, ge=0)
    sigma: float = pydantic.Field(0.6, gt=0)
    classifier_epochs: int = pydantic.Field(30, ge=1)


class GpGan(TrainedObfuscator):
    """The generator; discriminator and classifier are discarded after `fit`. The label to be hidden is not used."""

    Config = GpGanConfig
    name = "gp-gan"
    landmarked = True

    def _build(self) -> None:
        self.generator = DenseUNet(self.image_shape[0], self.config.width)

    def forward(self, landmarks: Tensor) -> Tensor:
        """Map landmarks (B, K, 2), in px, to faces in [-1, 1]."""
        faces: Tensor = self.generator(heat_map(landmarks, self.image_shape[1:], self.config.sigma))
        return faces

    def _fit(self, images: Tensor, inputs: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
        config, pixels = self.config, images * 2 - 1
        classifier = build_classifier("cnn", self.image_shape, self.num_utilities, seed=config.seed).to(pixels.device)
        fit = FitConfig(epochs=config.classifier_epochs, batch_size=32, learning_rate=3e-3, seed=config.seed)
        fit_classifier(classifier, pixels, utilities, config=fit, augment=lambda batch, rng: _shaken(batch))
        classifier.eval().requires_grad_(False)  # C is fixed after its training
        features = nn.Sequential(*list(classifier.body.children())[:_SEEN])
        judge = patch_discriminator(self.image_shape[0], config.width).to(images.device)
        generator_optimizer = Adam(self.parameters(), lr=config.learning_rate, betas=(0.5, 0.999), fused=True)
        judge_optimizer = Adam(judge.parameters(), lr=config.learning_rate, betas=(0.5, 0.999), fused=True)
        falls = LambdaLR(
            generator_optimizer, lambda step: min(1.0, 2 - 2 * step / config.steps)
        )  # decays to 0 in the second half
        draw = batches(len(images), config.batch_size, images.device)
        for _ in self._steps(progress, judge, classifier):
            index = next(draw)
            real = pixels[index]
            faces = self(inputs[index])
            update(judge_optimizer, softplus(-judge(real)).mean() + softplus(judge(faces.detach())).mean())
            with torch.no_grad():
                wanted, target = features(real), classifier(real).softmax(1)
            loss = (
                config.adversarial * softplus(-judge(faces)).mean()
                + config.perceptual * l1_loss(features(faces), wanted)
                + config.attribute * cross_entropy(classifier(_shaken(faces)), target)
                + config.pixels * l1_loss(faces, real)
            )
            update(generator_optimizer, loss)
            falls.step()


def _shaken(images: Tensor) -> Tensor:
    """Shift a batch and add noise; otherwise invisible patterns satisfy C before the generator draws a mouth."""
    height, width = (side // _SHIFT for side in images.shape[2:])
    down, across = (int(torch.randint(-most, most + 1, ())) for most in (height, width))
    return images.roll((down, across), (2, 3)) + _GRAIN * torch.randn_like(images)


class DenseUNet(nn.Module):
    """A heat map to a face: two halvings, two doublings with skip connections, a dense block at each size."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        fine, middle, coarse = DenseBlock(width), DenseBlock(2 * width), DenseBlock(4 * width)
        upper, last = DenseBlock(2 * width + middle.num_out), DenseBlock(width + fine.num_out)
        self.fine = nn.Sequential(*convolution(1, width), fine)
        self.middle = nn.Sequential(*convolution(fine.num_out, 2 * width, stride=2), middle)
        self.coarse = nn.Sequential(*convolution(middle.num_out, 4 * width, stride=2), coarse)
        self.to_middle, self.upper = nn.Sequential(*doubling(coarse.num_out, 2 * width)), upper
        self.to_fine, self.last = nn.Sequential(*doubling(upper.num_out, width)), last
        self.out = nn.Sequential(nn.Conv2d(last.num_out, channels, 3, padding=1), nn.Tanh())

    def forward(self, heat: Tensor) -> Tensor:
        """Map (B, 1, H, W) to (B, C, H, W) in [-1, 1]."""
        fine = self.fine(heat)
        middle = self.middle(fine)
        upper = self.upper(torch.cat([self.to_middle(self.coarse(middle)), middle], 1))
        faces: Tensor = self.out(self.last(torch.cat([self.to_fine(upper), fine], 1)))
        return faces


class DenseBlock(nn.Module):
    """Layers that each see all maps before them and add a quarter of the first ones (Huang et al. 2017)."""

    def __init__(self, num_in: int) -> None:
        super().__init__()
        growth = max(1, num_in // 4)
        self.layers = nn.ModuleList(
            nn.Sequential(*convolution(num_in + layer * growth, growth)) for layer in range(_LAYERS)
        )
        self.num_out = num_in + _LAYERS * growth

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, num_in, H, W) to (B, num_out, H, W)."""
        for layer in self.layers:
            maps = torch.cat([maps, layer(maps)], 1)
        return maps


def patch_discriminator(channels: int, width: int) -> nn.Sequential:
    """Return a network that judges each patch: (B, C, H, W) to logits (B, 1, H / 4, W / 4) (Isola et al. 2017)."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 4, 2, padding=1),
        nn.LeakyReLU(0.2),
        *convolution(width, 2 * width, stride=2),
        nn.Conv2d(2 * width, 1, 3, padding=1),
    )


def heat_map(landmarks: Tensor, size: tuple[int, int], sigma: float) -> Tensor:
    """Return the heat of landmarks (B, K, 2), x and y in px: (B, 1, H, W), each a normal density with the peak 1."""
    height, width = (torch.arange(side, device=landmarks.device) + 0.5 for side in size)
    across = (-0.5 * ((width - landmarks[..., :1]) / sigma).square()).exp()  # (B, K, W)
    down = (-0.5 * ((height - landmarks[..., 1:]) / sigma).square()).exp()  # (B, K, H)
    return (down.transpose(1, 2) @ across)[:, None]


PUBLISHERS = {GpGan.name: without_proof(GpGan)}
