"""Contrast: how far the pixels are spread, beside those of the real images that judge."""

from dataclasses import dataclass

from idpgan.data.images import to_unit
from idpgan.metrics.metric import Metric, MetricResult, MetricTable


@dataclass(frozen=True)
class Contrast(MetricResult):
    images: float
    real: float


def measure(judging, images):
    """Return standard deviations of pixels in [0, 1]."""
    return Contrast(*(float(to_unit(part.images).std()) for part in (images, judging.judges)))


def table(found):
    """Show both."""
    if not found.get("contrast"):
        return None
    rows = (("these images", f"{found['contrast']['images']:.3f}"), ("real", f"{found['contrast']['real']:.3f}"))
    return MetricTable("Contrast: standard deviation of the pixels, black 0, white 1", ("", "contrast"), rows)


METRIC = Metric("contrast", measure, table)
