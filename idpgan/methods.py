"""The table of all methods: one row each, with what its paper claims and what is proven. Imports no method."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class MethodInfo:
    """One row of ``idpgan methods``.

    Attributes:
        name: As written in ``method.name`` (a generator or a classifier), or passed to `idpgan.publish.release` (a
            publisher, or an obfuscator: one that claims nothing).
        family: "generator", "classifier", "publisher" or "obfuscator".
        code: Where it is, below `idpgan`. Of a generator or classifier the module, in which ``Settings`` is its config,
            ``Plan`` its price and ``Method`` its code; else the module and an object in it. ``AUDIT`` of the module
            says how it is audited.
        units: The guarantee's possible units, the default first; names of `idpgan.privacy.Unit`.
        sound: Whether proven <= claimed (or asked for) for every setting; None if nothing is promised.
        claimed: The epsilon that the method states, None if it states none.
        proven: The epsilon that our accountant proves; "inf" is none.
        reason: One sentence: why `proven` is what it is.
    """

    name: str
    family: str
    code: str
    units: tuple[str, ...]
    relation: str
    sound: bool | None
    claimed: str | None
    proven: str
    reason: str

    @property
    def nothing_to_audit(self) -> str | None:
        """One sentence why there is no guarantee to audit; None where a guarantee is claimed or proven."""
        if self.claimed is not None or self.proven != "inf":
            return None
        return f"{self.reason}, so there is no guarantee to audit."

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        row = asdict(self)
        del row["code"]
        return {**row, "units": list(self.units)}


# fmt: off
_TRAINED = (  # name, family, code, units, relation, sound, claimed, proven, reason
    ("wgan-gp", "generator", "synthesis.wgan_gp",
     ("image",), "replace-one", None, None, "inf",
     "wgan-gp trains on the raw images without noise"),
    ("idp-gan-aggregate", "generator", "synthesis.aggregate",
     ("image", "person", "photo"), "zero-out-one or replace-one", True, "privacy.epsilon", "privacy.epsilon",
     "one release of noisy sums of features of bounded norm; training on them costs nothing"),
    ("idp-gan-published", "generator", "synthesis.idp_published",
     ("image",), "replace-one", False, "eps1 + eps2",
     "n R / b0 where noise is drawn once, that per access where drawn at each, inf where a batch shares it",
     "the paper sizes its noise by the first layer and the batch, and charges eps1 + eps2 for any training"),
    ("dp-gan", "generator", "synthesis.dp_gan",
     ("image",), "zero-out-one", True, "privacy.epsilon", "privacy.epsilon",
     "DP-SGD on the critic: gradients clipped per image, Poisson sampling, Gaussian noise on their sum"),
    ("dp-gan-zhang", "generator", "synthesis.dp_gan_zhang",
     ("image",), "zero-out-one", False, "privacy.epsilon", "privacy.epsilon at sqrt(groups / tensors) of its noise",
     "every weight tensor is clipped to its group's bound by itself, and one term a group is accounted"),
    ("gaussian", "generator", "synthesis.gaussian",
     ("image", "person", "photo"), "zero-out-one or replace-one", True, "privacy.epsilon", "privacy.epsilon",
     "one release of noisy first and second moments of bounded vectors; sampling from them costs nothing"),
    ("traits", "generator", "synthesis.traits",
     ("image", "person", "photo"), "zero-out-one or replace-one", True, "privacy.epsilon", "privacy.epsilon",
     "one release of noisy sums of bounded vectors; portraits that are drawn by them cost nothing"),
    ("diffusion", "generator", "synthesis.diffusion",
     ("image",), "zero-out-one", True, "privacy.epsilon", "privacy.epsilon",
     "one release of noisy moments, then DP-SGD on a denoiser that starts at them; both are charged to one ledger"),
    ("edm", "generator", "synthesis.edm",
     ("image",), "replace-one", None, None, "inf",
     "edm trains on the raw images without noise"),
    ("evolution", "generator", "synthesis.evolution",
     ("image", "person", "photo"), "zero-out-one or replace-one", True, "privacy.epsilon", "privacy.epsilon",
     "a noisy histogram of votes at each iteration, one vote a record; nothing else reads a private image"),
    ("scattering-linear", "classifier", "classify.scattering_linear",
     ("image",), "zero-out-one", True, "privacy.epsilon", "privacy.epsilon",
     "noisy gradient descent of a linear classifier on fixed features, gradients clipped per image"),
    ("dp-sgd", "classifier", "classify.dp_sgd",
     ("image",), "zero-out-one", True, "privacy.epsilon", "privacy.epsilon",
     "DP-SGD on a small classifier: gradients clipped per image, Poisson sampling, Gaussian noise on their sum"),
    ("pgd", "classifier", "classify.pgd",
     ("image",), "replace-one", None, None, "inf",
     "pgd trains on the raw images without noise: robust against changed inputs, not private"),
    ("dssgd", "classifier", "classify.dssgd",
     ("image",), "replace-one", False, "privacy.epsilon / uploads, per parameter and round",
     "rounds * privacy.epsilon; inf without noise",
     "the paper counts one parameter of one round, and every round uploads many; without noise nothing is proven"),
    ("arden", "classifier", "classify.arden",
     ("image",), "replace-one", False, "ln((1 - mu) e^(2 B / b) + mu), the price of one feature", "privacy.epsilon",
     "the paper prices one noisy feature, and every image sends many; a pixel that is nullified hides no image"),
)
_EARLIER = (  # went with 0.4.0: their releases are verified and their charges count, and nothing else knows them
    ("idp-gan-local", "generator", "synthesis.earlier:Local",
     ("image",), "replace-one", True, None, "privacy.epsilon",
     "each image and its label are perturbed by themselves, once; all else is computed from the result"),
    ("hybrid", "generator", "synthesis.earlier:Hybrid",
     ("image",), "zero-out-one", True, "privacy.epsilon", "privacy.epsilon",
     "one release of noisy sums, then DP-SGD on a critic; both are charged to one ledger"),
)
_PUBLISHERS = (  # name, units, sound, claimed, proven, code, reason
    ("lap", ("pixel", "column", "image"), True, "epsilon", "epsilon", "publish.sound.publishers:PUBLISHERS",
     "discrete noise on every pixel, sized by the public pixel range and the image size alone"),
    ("lap-shrink", ("pixel", "column", "image"), True, "epsilon", "epsilon", "publish.sound.publishers:PUBLISHERS",
     "lap, then optimal shrinkage of the noisy image's singular values at the known noise level: post-processing"),
    ("lap-wiener", ("pixel", "column", "image"), True, "epsilon", "epsilon", "publish.sound.publishers:PUBLISHERS",
     "lap, then the best linear estimate under a model of drawn faces at the known noise level: post-processing"),
    ("dct", ("pixel", "column", "image"), True, "epsilon", "epsilon", "publish.sound.publishers:PUBLISHERS",
     "discrete noise on the lowest frequencies, sized by the public cosines; the estimate is post-processing"),
    ("fourier", ("pixel", "column", "image"), True, "epsilon", "epsilon", "publish.sound.publishers:PUBLISHERS",
     "discrete noise on the lowest Fourier coefficients, sized by the public waves; the estimate is post-processing"),
    ("wavelet", ("pixel", "column", "image"), True, "epsilon", "epsilon", "publish.sound.publishers:PUBLISHERS",
     "discrete noise on Haar's differences of halves, sized by the pixel range; the estimate is post-processing"),
    ("pix", ("pixel", "column", "image"), True, "epsilon", "epsilon", "publish.sound.publishers:PUBLISHERS",
     "discrete noise on sums over public blocks, sized by the pixel range; the estimate is post-processing"),
    ("quadtree", ("pixel", "column", "image"), True, "epsilon", "epsilon", "publish.sound.weighted_blocks:PUBLISHERS",
     "discrete noise on sums over the blocks of a public quadtree, weighted by level; the estimate is post-processing"),
    ("face-parts", ("pixel", "column", "image"), True, "epsilon", "epsilon", "publish.sound.weighted_blocks:PUBLISHERS",
     "discrete noise on sums over public blocks, more where eyes, nose and mouth of an aligned face are; the estimate "
     "is post-processing"),
    ("eigenfaces", ("pixel", "column", "image"), True, "epsilon", "epsilon", "publish.sound.faces:PUBLISHERS",
     "discrete noise on coefficients in a basis of drawn faces, clipped to a public norm or sized by the basis"),
    ("codebook", ("image",), True, "epsilon", "epsilon", "publish.sound.faces:PUBLISHERS",
     "the number of the nearest of K public faces, by k-ary randomized response; nothing else of the image is used"),
    ("lap-published", ("column",), False, "epsilon", "inf", "publish.matrix:PUBLISHERS",
     "the noise is sized by the image's own largest column sum, so a black image is released exactly and "
     "neighbors differ in the scale of all noise"),
    ("lra", ("column",), False, "epsilon", "inf", "publish.matrix:PUBLISHERS",
     "every update reads the image and draws noise again while epsilon is charged once, and noise scale and "
     "rank are the image's own"),
    ("sra", ("column",), False, "epsilon", "inf", "publish.matrix:PUBLISHERS",
     "singular vectors are released without noise, so the output's column space is that of the private image, "
     "and the noise is sized by its largest singular value"),
    ("esra", ("column",), False, "epsilon", "inf", "publish.matrix:PUBLISHERS",
     "singular vectors are released without noise, so the output's column space is within that of the private "
     "image; the sensitivities of score and noise are the image's own"),
    ("lrm", ("column",), False, "epsilon", "inf", "publish.matrix:PUBLISHERS",
     "the left factor is computed from the private image and released without noise: a fixed workload is "
     "public, an image is not"),
    ("mm", ("column",), False, "epsilon", "inf", "publish.matrix:PUBLISHERS",
     "the left factor is computed from the private image and released without noise, and the noise is sized by "
     "the image's own right factor"),
    ("swp", ("pixel",), False, "epsilon per window", "inf", "publish.sliding_windows:PUBLISHERS",
     "whether a window is released or replaced is decided on its raw pixels without noise, and a window after "
     "many replaced ones gets many times epsilon"),
    ("sort-swp", ("pixel",), False, "epsilon per window", "inf", "publish.sliding_windows:PUBLISHERS",
     "beside what is wrong in swp, the order of the windows is annealed on their true similarities without noise"),
    ("swp-sound", ("pixel", "image"), True, "epsilon", "epsilon", "publish.sound.sliding_windows:PUBLISHERS",
     "a noisy distance decides whether a window is released with noise or replaced; each window pays for both"),
    ("sort-swp-sound", ("pixel", "image"), True, "epsilon", "epsilon", "publish.sound.sliding_windows:PUBLISHERS",
     "noisy sums order the windows, then as swp-sound; each window pays for order, distance and release"),
)
_OBFUSCATORS = (  # name, code, reason
    ("blur", "publish.obfuscators.filters:PUBLISHERS",
     "a filter without noise: two images are told apart by what comes out, and a network that is trained on "
     "blurred faces recognizes them"),
    ("pixelate", "publish.obfuscators.filters:PUBLISHERS",
     "block means without noise: two images are told apart by what comes out, and a network that is trained on "
     "coarse faces recognizes them"),
    ("k-same", "publish.obfuscators.k_same:PUBLISHERS",
     "means of k images without noise: they hide who is in the set once, and of somebody with several images they "
     "are his own mean; who knows the others subtracts them"),
    ("disguise", "publish.obfuscators.filters:PUBLISHERS",
     "one key for all images and noise that no sensitivity sizes: a few known images give the key away by "
     "least squares"),
    ("adversarial-encoder", "publish.obfuscators.adversarial:PUBLISHERS",
     "a network without noise: it is trained against one adversary, which bounds no other, and on the private "
     "images themselves"),
    ("pprl-vgan", "publish.obfuscators.pprl_vgan:PUBLISHERS",
     "the code of an image is released without noise by a network that was trained on the private images; the "
     "people drawn are real"),
    ("obfuscator", "publish.obfuscators.adversarial:PUBLISHERS",
     "a network without noise: it is trained against one attacker, which bounds no other, and on the private "
     "images themselves"),
    ("censored", "publish.obfuscators.adversarial:PUBLISHERS",
     "an autoencoder without noise: it is trained against one adversary, which bounds no other, and on the "
     "private images themselves"),
    ("gp-gan", "publish.obfuscators.gp_gan:PUBLISHERS",
     "the landmarks of a private face are released without noise, through a face that is drawn from them by a "
     "network that was trained on the private images"),
)
# fmt: on

METHODS: dict[str, MethodInfo] = {
    row.name: row
    for row in (
        *(MethodInfo(*row) for row in _TRAINED),
        *(
            MethodInfo(name, "publisher", code, units, "replace-one", sound, claimed, proven, reason)
            for name, units, sound, claimed, proven, code, reason in _PUBLISHERS
        ),
        *(
            MethodInfo(name, "obfuscator", code, ("image",), "replace-one", None, None, "inf", reason)
            for name, code, reason in _OBFUSCATORS
        ),
    )
}
EARLIER: dict[str, MethodInfo] = {row[0]: MethodInfo(*row) for row in _EARLIER}

CLASSIFIER = "scattering-linear"  # what `idpgan.fit_classifier` trains unless it is told otherwise


def methods_of(*families: str) -> Mapping[str, MethodInfo]:
    """Return the rows of some families by name, one family after the other."""
    rows = [row for family in families for row in METHODS.values() if row.family == family]
    return MappingProxyType({row.name: row for row in rows})


def names_of(*families: str) -> str:
    """Name the methods of some families as a message does: "generator: a, b; classifier: c"."""
    return "; ".join(f"{family}: {', '.join(methods_of(family))}" for family in families)


def row_of(name: str) -> MethodInfo:
    """Return the row of a method, also of one that went."""
    return METHODS.get(name) or EARLIER[name]


def load(name: str) -> Any:
    """Import a method, its module or an object in it: the one place where a method's name leads to code."""
    path, _, attribute = row_of(name).code.partition(":")
    module = importlib.import_module(f"idpgan.{path}")
    return getattr(module, attribute) if attribute else module


def load_audit(name: str) -> Any:
    """Return the `idpgan.audit.entry.Entry` of a method, ``AUDIT`` of its module."""
    return importlib.import_module(f"idpgan.{METHODS[name].code.partition(':')[0]}").AUDIT
