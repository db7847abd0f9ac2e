"""The small AlexNet-like network that recognizes faces in Liu et al. (2021).

Liu Chao, Yang Jing, Zhao Weinan, Zhang Yining, Li Jingyou, Mu Chunmiao (2021), "Face image publication based on
differential privacy", Wireless Communications and Mobile Computing, section 4.3: "an improved AlexNet [...] has a
simpler network structure and fewer parameters". No layer is stated. Ours keeps AlexNet's order (Krizhevsky, Sutskever
and Hinton 2012): five convolutions, pooling after the first, second and fifth, dropout before the fully connected
layers. It has a twelfth of the channels up to a quarter, one hidden layer, and batch normalization for the local one.
"""

from __future__ import annotations

from torch import nn

from idpgan.models.classifier import Classifier, convolution
from idpgan.models.initialize import seeded_init

_BODY_PX = 48  # the first convolution brings the longer side down to at most this
_GRID = 4  # what the last pooling leaves a side
_NUM_HIDDEN = 128
_DROPOUT = 0.5


def build_recognizer(image_shape: tuple[int, int, int], num_people: int, *, seed: int = 0) -> Classifier:
    """Build a recognizer with fresh weights, on the CPU: float images in [-1, 1] to a logit per person.

    Batch normalization and all: it judges images, it is never trained under differential privacy.

    Args:
        image_shape: (C, H, W), H and W at least 16.
        num_people: At least 1.
        seed: Of the initial weights. The caller's random state is neither read nor changed.
    """
    channels, height, width = image_shape
    stride = 1
    while max(height, width) > _BODY_PX * stride:
        stride *= 2
    with seeded_init(seed):
        body = nn.Sequential(
            *convolution(channels, 24, 2 * stride + 3, stride),
            nn.MaxPool2d(3, 2, padding=1),
            *convolution(24, 48, 5),
            nn.MaxPool2d(3, 2, padding=1),
            *convolution(48, 64, 3),
            *convolution(64, 64, 3),
            *convolution(64, 64, 3),
            nn.AdaptiveMaxPool2d(_GRID),
            nn.Flatten(),
            nn.Dropout(_DROPOUT),
            nn.Linear(64 * _GRID * _GRID, _NUM_HIDDEN),
            nn.ReLU(inplace=True),
        )
        recognizer = Classifier(body, _NUM_HIDDEN, num_people)
    nn.init.zeros_(recognizer.head.weight)
    nn.init.zeros_(recognizer.head.bias)
    return recognizer
