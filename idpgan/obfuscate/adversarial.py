"""Networks trained against an adversary that learns in turn: what it is to lose, and what is to be kept.

The notes that these are built from state neither networks nor, mostly, losses: both are ours. No encoder maximizes an
adversary's cross-entropy, which has no bound.
"""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from idpgan.errors import InputError
from idpgan.models.classifier import build_classifier
from idpgan.obfuscate.networks import Painter, TrainedObfuscator, Training, Translator, Trunk, update
from idpgan.progress import Progress

_REACH = 3.0  # standard deviations of an output number that black and white stand for


class AdversarialEncoderConfig(Training):
    """Options of `adversarial-encoder`.

    Attributes:
        alpha: Weight of the label to be kept, beside 1 for the one to be lost.
        adversary_steps: Updates of the estimators for each of the encoder.
    """

    alpha: float = pydantic.Field(1.0, ge=0)
    adversary_steps: int = pydantic.Field(2, ge=1)


class AdversarialEncoder(TrainedObfuscator):
    """An encoder trained against an adversary: one label of its images is to be lost, another to be kept.

    Pittaluga, Koppal, Chakrabarti, "Learning privacy preserving encodings through adversarial training" (WACV 2019),
    arXiv:1802.05214: ``E = argmax_E I(E; u) - alpha I_v(E)``, where I is the least loss of an estimator of the private
    label u on encoded images, and I_v that of the label to be kept. Against collapse every output number has mean 0 and
    variance 1 over the images. Claimed: an estimator trained afresh on encoded images fails at u, and blur stops none.

    The notes that this is built from state neither networks nor losses. Ours are a U-Net and two convolutional
    estimators; the encoder does not maximize the estimator's cross-entropy, which has no bound, but brings its answer
    to the uniform one. An output of mean 0 and variance 1 becomes a pixel by ``1/2 + z/6``, clipped, so that the code
    is an image.

    The estimators are thrown away after `fit`.
    """

    Config = AdversarialEncoderConfig
    name = "adversarial-encoder"

    def _build(self) -> None:
        channels, height, width = self.image_shape
        self.network = Translator(channels, self.config.width)
        self.whiten = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(channels * height * width, affine=False))

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1] to codes in [-1, 1], (B, C, H, W)."""
        code = self.whiten(self.network(images * 2 - 1)).view_as(images)
        return (code / _REACH).clamp(-1, 1)

    def _fit(self, images: Tensor, shown: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
        config, shape = self.config, self.image_shape
        spy = build_classifier("cnn", shape, self.num_identities, seed=config.seed).to(images.device)
        keeper = build_classifier("cnn", shape, self.num_utilities, seed=config.seed + 1).to(images.device)
        turns = self._turns(len(images), nn.ModuleList([spy, keeper]), nn.Identity(), progress)
        for attacked, optimizer, index in turns:
            with torch.set_grad_enabled(not attacked):
                code = self(images[index])
            kept = cross_entropy(keeper(code), utilities[index])
            if attacked:
                update(optimizer, cross_entropy(spy(code), identities[index]) + kept)
            else:  # the cross-entropy of the uniform answer
                update(optimizer, -spy(code).log_softmax(1).mean() + config.alpha * kept)


class GameObfuscatorConfig(Training):
    """Options of `obfuscator`.

    Attributes:
        weight: lambda, the attacker's share of the loss.
        adversary_steps: Updates of the attacker for each of the obfuscator.
    """

    weight: float = pydantic.Field(0.5, gt=0, lt=1)
    adversary_steps: int = pydantic.Field(2, ge=1)


class GameObfuscator(TrainedObfuscator):
    """An obfuscator against an attacker: the image changes little, and the attacker fails.

    Raval, Machanavajjhala, Cox, "Protecting visual secrets using adversarial nets" (CVPR workshops 2017). The attacker
    A is trained on clear and obfuscated images alike to tell what is secret; the obfuscator O minimizes ``lambda E
    A(O(x)) + (1 - lambda) E |x - O(x)|_1``. Claimed: the attacker falls to chance, and the image stays what it was.

    In the paper A says whether an image shows a secret object (a QR code on CIFAR-10). Here the secret is who is on the
    image: A has a probability for each person, and A(O(x)) is that of the right one. Where A is certain the slope of
    A(O(x)) vanishes, and an obfuscator that begins near the image itself never leaves it; we minimize -log(1 - A) in
    its place, as GANs are trained. The L1 distance is the mean over pixels in [0, 1]. The networks are ours: the notes
    state none.

    The attacker is thrown away after `fit`. The label to be kept is not used.
    """

    Config = GameObfuscatorConfig
    name = "obfuscator"

    def _build(self) -> None:
        self.network = Translator(self.image_shape[0], self.config.width)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1] to images in [0, 1]."""
        return torch.sigmoid(self.network(images * 2 - 1) + 4 * (images - 0.5))  # begins near the image itself

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        return self(images)

    def _fit(self, images: Tensor, shown: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
        config = self.config
        attacker = build_classifier("cnn", self.image_shape, self.num_identities, seed=config.seed).to(images.device)
        for attacked, optimizer, index in self._turns(len(images), attacker, nn.Identity(), progress):
            with torch.set_grad_enabled(not attacked):
                hidden = self(images[index])
            if attacked:
                both = torch.cat([images[index], hidden]) * 2 - 1
                update(optimizer, cross_entropy(attacker(both), identities[index].repeat(2)))
                continue
            logits, people = attacker(hidden * 2 - 1), identities[index, None]
            others = logits.scatter(1, people, -torch.inf).logsumexp(1, keepdim=True)
            # -log(1 - A), as 1 - A = sigmoid(others - right)
            found = softplus(logits.gather(1, people) - others).mean()
            changed = (hidden - images[index]).abs().mean()
            update(optimizer, config.weight * found + (1 - config.weight) * changed)


class CensoredConfig(Training):
    """Options of `censored`; alpha, beta and gamma are those of the paper.

    Attributes:
        alpha: Weight of the reconstruction, mean squared error of pixels in [-1, 1].
        beta: Weight of the hidden label, to be lost.
        gamma: Weight of the label that is to be kept; 0 where there is none.
        towards: Value of the hidden label, by its number from 0 (values sorted), that all images are to be taken for;
            None: every value is to be equally likely.
        code: Numbers between encoder and decoder.
        adversary_steps: Updates of the adversary for each of the autoencoder.
    """

    alpha: float = pydantic.Field(10.0, ge=0)
    beta: float = pydantic.Field(1.0, ge=0)
    gamma: float = pydantic.Field(1.0, ge=0)
    towards: int | None = pydantic.Field(None, ge=0)
    code: int = pydantic.Field(128, ge=1, le=1 << 14)
    adversary_steps: int = pydantic.Field(1, ge=1)


class Censored(TrainedObfuscator):
    """A representation censored by an adversary: the image is reconstructed, and what is hidden cannot be told from it.

    Edwards and Storkey, "Censoring representations with an adversary" (ICLR 2016), arXiv:1511.05897. An encoder makes a
    representation R of an image X, a decoder reconstructs X; an adversary tells the sensitive S from R, a predictor the
    label Y; encoder, decoder and predictor minimize ``alpha C(X, R) + beta D(S, R) + gamma E(Y, R)``, where C is the
    squared error of reconstruction, E the predictor's cross-entropy and D how well the adversary does, who maximizes D.

    Two uses. *Fair classification*: what is decided from R treats the groups of S alike (`idpgan.metrics.accuracy`).
    *Anonymization*: S says whether there is something to remove (a text in a picture); two sets of images are enough,
    with and without it, and no image is there in both forms. Every R is to be taken for one of the set without:
    `Config.towards`.

    The notes that this is built from stop at the loss; the rest is the usual form, and networks are ours. R is the
    decoded image in both uses: that is what goes out, and what adversary and predictor read. S has any number of
    values, not two. The encoder does not maximize the adversary's cross-entropy, which has no bound: it brings the
    answer to the uniform one, or, towards a value, to that value for the images that have another.

    Adversary and predictor are thrown away after `fit`.
    """

    Config = CensoredConfig
    name = "censored"

    def _build(self) -> None:
        config = self.config
        if config.towards is not None and config.towards >= self.num_identities:
            raise InputError(
                f"towards = {config.towards} must be the number of one of {self.num_identities} values to be hidden, "
                "from 0."
            )
        self.trunk = Trunk(self.image_shape, config.width)
        self.code = nn.Linear(self.trunk.num_features, config.code)
        self.painter = Painter(config.code, self.image_shape, config.width)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1] to censored ones in [-1, 1]."""
        censored: Tensor = self.painter(self.code(self.trunk(images * 2 - 1)))
        return censored

    def _fit(self, images: Tensor, shown: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
        config, device = self.config, images.device
        adversary = build_classifier("cnn", self.image_shape, self.num_identities, seed=config.seed).to(device)
        predictor = build_classifier("cnn", self.image_shape, self.num_utilities, seed=config.seed + 1).to(device)
        for attacked, optimizer, index in self._turns(len(images), adversary, predictor, progress):
            with torch.set_grad_enabled(not attacked):
                censored = self(images[index])
            if attacked:
                update(optimizer, cross_entropy(adversary(censored), identities[index]))
                continue
            cost = (censored - (images[index] * 2 - 1)).square().mean()
            log_shares = adversary(censored).log_softmax(1)
            if config.towards is None:
                told = -log_shares.mean()
            else:
                others = (identities[index] != config.towards).to(log_shares)  # the rest is innocent as it is
                told = -(log_shares[:, config.towards] * others).mean()
            missed = cross_entropy(predictor(censored), utilities[index])
            update(optimizer, config.alpha * cost + config.beta * told + config.gamma * missed)
