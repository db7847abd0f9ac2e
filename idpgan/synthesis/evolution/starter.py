"""What a config of evolution begins with."""

from __future__ import annotations

from idpgan.synthesis.starter import Facts, Sections, Setting, privacy

_MOST, _LEAST, _VOTES = 1000, 20, 20  # candidates of a class; private images of the class for each


def suggest(facts: Facts) -> Sections:
    """Return the settings by size and number of private images."""
    simulator, why = ("fonts", "digits of a pen") if facts.handwriting else ("faces", "drawn faces")
    if facts.shape.sizes.public:
        simulator, why = "public", "the public images, moved and bent"
    candidates = min(max(facts.per_class // _VOTES, _LEAST), _MOST)
    return {
        "model": {
            "generator": Setting("population", "settings of a simulator, chosen by votes; no network is trained"),
            "simulator": Setting(simulator, f'{why}; "faces" or "fonts" are drawn, "public" are your public images'),
            "conditional": Setting(bool(facts.shape.classes), "classes can be asked for"),
            "codes": Setting(candidates, "candidates of each class: more are finer, with fewer votes each"),
        },
        "method": {"name": Setting("evolution", "minutes; the private images only vote")},
        "privacy": privacy(facts),
    }
