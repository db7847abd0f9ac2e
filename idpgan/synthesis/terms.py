"""The [privacy] section of methods whose guarantee speaks of images or of people, and what unit person needs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from idpgan.data.config import DataConfig
from idpgan.errors import ConfigError
from idpgan.privacy import Relation, Unit
from idpgan.training.config import CHOOSE_DELTA, PrivacyConfig


class AggregatePrivacy(PrivacyConfig):
    """[privacy] of idp-gan-aggregate; epsilon, delta, unit and relation are one statement.

    Attributes:
        epsilon: Of the one release, whatever is trained from it.
        delta: Below 1/N; 0 for the pure guarantee of Laplace noise.
        unit: "image", or "person" where the data names identities.
        relation: How neighbors differ.
        most_per_person: Public cap on a person's images; further ones are left out, the first by index stay.
    """

    epsilon: float = Field(gt=0)
    delta: float = Field(ge=0, lt=1, description=CHOOSE_DELTA)
    unit: Literal[Unit.IMAGE, Unit.PERSON] = Unit.IMAGE
    relation: Relation = Relation.ZERO_OUT
    most_per_person: int = Field(20, ge=1, le=1_000_000)


def refuse_shared_people(unit: Unit, data: DataConfig) -> None:
    """Raise a `ConfigError` for unit person unless everybody has all images in one part.

    One public image of a person voids the guarantee.
    """
    if unit is not Unit.PERSON:
        return
    if data.split_by != "identity":
        raise ConfigError(
            'privacy.unit = person, but data.split_by = "image" deals the images of one person to several parts, '
            'and nothing protects those in the public one. Set data.split_by = "identity".'
        )
    if data.public_root is not None and not (data.confirm_public or data.public_disjoint):
        raise ConfigError(
            f"privacy.unit = person with data.public_root = '{data.public_root}': people of the private images who "
            "are on public ones too have no guarantee, and nothing here can tell. If nobody of the private folder "
            "is on the public images, declare it with data.public_disjoint = true."
        )
