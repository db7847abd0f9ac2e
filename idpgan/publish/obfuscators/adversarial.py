"""Networks trained in alternation with an adversary: images lose one kind of information and keep another.

Our notes on the papers describe no networks and few losses, so both are our own. No encoder here maximizes an
adversary's cross-entropy, because it is unbounded.
"""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from idpgan.errors import InputError
from idpgan.models.classifier import build_classifier
from idpgan.progress import Progress
from idpgan.publish.obfuscators.networks import Painter, TrainedObfuscator, Training, Translator, Trunk, update
from idpgan.publish.obfuscators.obfuscator import without_proof

_REACH = 3.0  # black and white are this many standard deviations of an output number from its mean


class AdversarialEncoderConfig(Training):
    """Options of `adversarial-encoder`.

    Attributes:
        alpha: Weight of the label to be kept, beside 1 for the one to be lost.
        adversary_steps: Updates of the estimators for each of the encoder.
    """

    alpha: float = pydantic.Field(1.0, ge=0)
    adversary_steps: int = pydantic.Field(2, ge=1)


class AdversarialEncoder(TrainedObfuscator):
    """An encoder trained against an adversary: it hides one label of the images and keeps another.

    Pittaluga, Koppal, Chakrabarti, "Learning privacy preserving encodings through adversarial training" (WACV 2019),
    arXiv:1802.05214: ``E = argmax_E I(E; u) - alpha I_v(E)``, where I is the least loss of an estimator of the private
    label u on encoded images, and I_v that of the label to be kept (alpha is 1/4 in the paper, 1 here). Against
    collapse every output number has mean 0 and variance 1 over the images. The paper claims that an estimator newly
    trained on encoded images fails at u, and that blur stops no estimator.

    Our notes on the paper describe neither networks nor losses. We use a U-Net and two convolutional estimators; the
    encoder does not maximize the estimator's unbounded cross-entropy, but brings its answer to the uniform
    distribution. An output of mean 0 and variance 1 becomes a pixel by ``1/2 + z/6``, clipped, so that the code is an
    image.

    The estimators are discarded after `fit`.
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

    def _fit(self, images: Tensor, inputs: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
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
            else:  # cross-entropy to the uniform answer
                update(optimizer, -spy(code).log_softmax(1).mean() + config.alpha * kept)


class GameObfuscatorConfig(Training):
    """Options of `obfuscator`.

    Attributes:
        weight: lambda, the attacker's share of the loss.
        towards: Value of the hidden label, by its number from 0 (values sorted), that all images are to be taken for,
            such as that of images without a secret; None: every image is to be taken for another one than its own.
        adversary_steps: Updates of the attacker for each of the obfuscator.
    """

    weight: float = pydantic.Field(0.5, gt=0, lt=1)
    towards: int | None = pydantic.Field(None, ge=0)
    adversary_steps: int = pydantic.Field(2, ge=1)


class GameObfuscator(TrainedObfuscator):
    """An obfuscator trained against an attacker, so that the image changes little and the attacker fails.

    Raval, Machanavajjhala, Cox, "Protecting visual secrets using adversarial nets" (CVPR workshops 2017). The attacker
    A is trained on clear and obfuscated images alike to tell what is secret; the obfuscator O minimizes ``lambda E
    A(O(x)) + (1 - lambda) E |x - O(x)|_1``. The paper claims that the attacker falls to chance and the image remains
    useful.

    In the paper A says whether an image shows a secret object (a QR code on CIFAR-10): the hidden label has two values,
    and `towards` is that of an image without it, so that A(O(x)) is the probability of the other. Without `towards` the
    secret is who is on the image: A has a probability for each person, and A(O(x)) is that of the right one. Where A is
    certain, the gradient of A(O(x)) vanishes, and an obfuscator that starts near the identity never leaves it; we
    minimize -log(1 - A) instead, as in GAN training. The L1 distance is the mean over pixels in [0, 1]. The networks
    are our own: our notes describe none.

    The attacker is discarded after `fit`. The label to be kept is not used.
    """

    Config = GameObfuscatorConfig
    name = "obfuscator"

    def _build(self) -> None:
        _check_towards(self.config.towards, self.num_identities)
        self.network = Translator(self.image_shape[0], self.config.width)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1] to images in [0, 1]."""
        return torch.sigmoid(self.network(images * 2 - 1) + 4 * (images - 0.5))  # starts near the identity

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        return self(images)

    def _fit(self, images: Tensor, inputs: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
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
            if config.towards is not None:
                fooling_loss = -logits.log_softmax(1)[:, config.towards].mean()
            else:  # -log(1 - A), as 1 - A = sigmoid(others - right)
                others = logits.scatter(1, people, -torch.inf).logsumexp(1, keepdim=True)
                fooling_loss = softplus(logits.gather(1, people) - others).mean()
            changed = (hidden - images[index]).abs().mean()
            update(optimizer, config.weight * fooling_loss + (1 - config.weight) * changed)


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
    """A censored representation: the image is reconstructed, and an adversary cannot infer the hidden label from it.

    Edwards and Storkey, "Censoring representations with an adversary" (ICLR 2016), arXiv:1511.05897. An encoder makes a
    representation R of an image X, a decoder reconstructs X; an adversary tells the sensitive S from R, a predictor the
    label Y; encoder, decoder and predictor minimize ``alpha C(X, R) + beta D(S, R) + gamma E(Y, R)``, where C is the
    squared error of reconstruction, E the predictor's cross-entropy and D the adversary's objective, which the
    adversary maximizes.

    Two uses. *Fair classification*: decisions from R treat the groups of S alike (`idpgan.metrics.accuracy`).
    *Anonymization*: S says whether an image contains something to remove (a text in a picture); a set of images with it
    and a set without it suffice, and no image is needed in both forms. Every R should look like one of the set without
    it: `Config.towards`.

    Our notes on the paper end at the loss; the rest follows common practice, and the networks are our own. R is the
    decoded image in both uses: it is released, and adversary and predictor read it. S may have more than two values.
    The encoder does not maximize the adversary's unbounded cross-entropy: it brings the answer to the uniform
    distribution, or, with `towards`, to that value for the images that have another value.

    Adversary and predictor are discarded after `fit`.
    """

    Config = CensoredConfig
    name = "censored"

    def _build(self) -> None:
        config = self.config
        _check_towards(config.towards, self.num_identities)
        self.trunk = Trunk(self.image_shape, config.width)
        self.code = nn.Linear(self.trunk.num_features, config.code)
        self.painter = Painter(config.code, self.image_shape, config.width)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1] to censored ones in [-1, 1]."""
        censored: Tensor = self.painter(self.code(self.trunk(images * 2 - 1)))
        return censored

    def _fit(self, images: Tensor, inputs: Tensor, utilities: Tensor, identities: Tensor, progress: Progress) -> None:
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
                adversary_loss = -log_shares.mean()
            else:
                others = (identities[index] != config.towards).to(log_shares)  # only these need a change
                adversary_loss = -(log_shares[:, config.towards] * others).mean()
            missed = cross_entropy(predictor(censored), utilities[index])
            update(optimizer, config.alpha * cost + config.beta * adversary_loss + config.gamma * missed)


def _check_towards(towards: int | None, num: int) -> None:
    if towards is not None and towards >= num:
        raise InputError(f"towards = {towards} must be the number of one of {num} values to be hidden, from 0.")


PUBLISHERS = {kind.name: without_proof(kind) for kind in (AdversarialEncoder, GameObfuscator, Censored)}
