"""What earlier versions had and this one refuses: one list, which every door asks and the CHANGELOG's table repeats."""

from __future__ import annotations

from types import MappingProxyType

SINCE = "0.4.0"
_SUMS = "Of a stream only counts are released: `idpgan.continual.ContinualCounter` or `idpgan stream`."
_EXPOSURE = "Run `python benchmarks/papers/exposure.py CONFIG`, which has the same options."
_REQUEST = "Audit a run that has it in its config, or `commands.audit.method_case(name, Request(...))` in Python."

#: What a user wrote -> what to do instead, a sentence. A config's key stands as "section.key", a value of it as
#: 'section.key = "value"', a config of the package as "config NAME", a command as "idpgan NAME", its option as
#: "idpgan NAME --option", a name of Python in full.
REMOVED = MappingProxyType(
    {
        # keys and values of configs
        'data.public = "people"': "Draw a folder once, and name it as data.public_root: idpgan people PORTRAITS "
        "--num 6000 --size 64, then idpgan init FACES --base PORTRAITS writes the lines.",
        'model.simulator = "people"': "Draw a folder once (idpgan people PORTRAITS --num 6000 --size 64), name it as "
        'data.public_root, and set model.simulator = "public".',
        "data.public_seed": "Leave it out: the seed of drawn public images is a constant of the package.",
        "model.temperature": 'Set model.drawing: "handwriting" draws more widely than was trained, "plain" as trained.',
        "model.coolest": 'Set model.drawing = "many-classes".',
        "model.truncation": 'Set model.drawing: "photos", "few-photos" and "faces" have 0.7 in images to look at.',
        "model.shape": 'Set model.drawing: "faces" (12 functions), "handwriting" or "many-classes" (6).',
        "model.light": 'Set model.drawing = "photos".',
        "model.detail": 'Set model.drawing = "many-classes".',
        "model.varied": 'Set model.drawing = "handwriting".',
        "model.agreed": 'Set model.drawing = "pen": 1,000 of each class.',
        "model.plain_share": 'Set model.drawing: it is 0.75 in "pen", 0.5 beside model.moved.',
        'method.name = "idp-gan-local"': "Take idp-gan-aggregate: one release, and images that teach. Releases of "
        "idp-gan-local still open, and count on ledgers.",
        'method.name = "hybrid"': "Take idp-gan-aggregate, or gaussian for faces: the critic's steps added nothing. "
        "Releases of hybrid still open, and count on ledgers.",
        "config digits-hybrid": "Take digits-aggregate.",
        "config mnist-hybrid": "Take mnist-aggregate-no-public.",
        "config faces-wild-hybrid": "Take faces-wild-gaussian.",
        "config digits-idp-gan-local": "Take digits-aggregate.",
        "config mnist-idp-gan-local": "Take mnist-aggregate.",
        'model.trained = "tangent:R"': 'Take "lora:R": as many numbers, beside the same layers.',
        'model.trained = "votes:K:R"': 'Name the layers yourself: "lora:R:PATTERN".',
        "method.average": "Leave it out: the critic's average keeps 0.95 of the past.",
        "method.average_from": "Leave it out: iterates are averaged over the second half of the steps.",
        "method.clip": "Leave it out: moments are cut at 0.7 of the expected length.",
        "method.contrast": "Leave it out: without public images pixels are expected to have 0.35.",
        "method.critic_warmup": "Leave it out: the generator follows from the first steps on.",
        "method.count_share": "Leave it out: the count has 0.2 of the squared norm.",
        "method.first_variation": "Leave it out: children differ by 0.6 after the first iteration.",
        "method.last_variation": "Leave it out: children differ by 0.2 after the last iteration but one.",
        "method.looks": "Name classes (data.classes) by what the simulator draws: smiling begins with smiles.",
        "method.phone_steps": "Leave it out: the phone's part takes 1,000 steps.",
        "method.private_weight": "Leave it out: both losses weigh the same.",
        "method.relevance_floor": "Leave it out: the least relevance of a pixel is 0.1 of the mean.",
        "method.warmup_share": "Leave it out: the radius grows over 0.2 of the steps.",
        "method.vote_share": "Votes for layers went too: leave it out.",
        "training.diverged_above": "Leave it out: a statistic above 1e8 ends a run.",
        # commands and options
        "idpgan sample --papers": "Card and manifest say what protects the images; `datasets` and the Hub make "
        "Croissant of the folder.",
        "idpgan doctor --all": "Take --json, which has every check.",
        "idpgan doctor --benchmark": "Run benchmarks/clipped_step.py of the source: the clipped step of DP-SGD.",
        "idpgan doctor --device": "Leave it out: every device is examined.",
        "idpgan train --keep-names": "Set data.keep_names=true.",
        "idpgan train --without-noise": "Set privacy.without_noise=true.",
        "idpgan init --no-probe": "Leave it out: no method is tried any more.",
        "idpgan init --channels": "Prepare the folder with --grey, or set data.channels in the config.",
        "idpgan ledger --raise": "Take --limit E --reason TEXT: a looser limit is one with a reason.",
        "idpgan obfuscate": "Take idpgan publish DIR --method blur --out OUT --accept-unsound, with the other options "
        "as they were; --device auto finds a GPU.",
        "idpgan rehearse": "Take idpgan train CONFIG --dry-run --epsilon 1 3 10, a table of signal and risk.",
        "idpgan people --columns": "All traits are in metadata.csv; data.label says which one makes the classes.",
        "idpgan attack --originals": "Take idpgan recognize OUT ORIGINALS.",
        "idpgan audit --exposure": _EXPOSURE,
        "idpgan audit --extract": _EXPOSURE,
        "idpgan audit --repeats": _EXPOSURE,
        "idpgan audit --relation": _REQUEST,
        "idpgan audit --noise": _REQUEST,
        "idpgan audit --law": _REQUEST,
        "idpgan audit --threads": "Leave it out; `benchmarks/audits.py --threads N` runs whole tables.",
        "idpgan evaluate --cache": "Set IDPGAN_CACHE in the environment.",
        # names of Python
        "idpgan.attacks.exposure": _EXPOSURE,
        "idpgan.attacks.run_attack": "Take `idpgan.attacks.attack(members, others, knowledge)`, which runs all rows.",
        "idpgan.metrics.measure_fairness": "Take fairlearn's; `idpgan evaluate --predictions` writes rows for it.",
        "idpgan.continual.RunningSums": _SUMS,
        "idpgan.continual.SumsStream": _SUMS,
        "idpgan.obfuscate": "Its names are in idpgan.publish: make_obfuscator, load_obfuscator, Obfuscator.",
        "idpgan.privacy.literature": "What surveys list is shown by benchmarks/papers/survey.py.",
        "idpgan.privacy.PermuteAndFlip": "Take `Exponential` or `NoisyMax`, or OpenDP's `make_noisy_max`.",
        "idpgan.privacy.SmoothMedian": "It is in benchmarks/papers/literature/smooth_sensitivity.py.",
        "idpgan.privacy.local_sensitivity": "It is in benchmarks/papers/literature/smooth_sensitivity.py.",
        "idpgan.privacy.smooth_sensitivity": "It is in benchmarks/papers/literature/smooth_sensitivity.py.",
    }
)


def gone(name: str) -> str | None:
    """Return the line that refuses what was there before `SINCE`; None where it never was there."""
    instead = REMOVED.get(name)
    return None if instead is None else f"{name} went with idpgan {SINCE}. {instead}"


def gone_arguments(arguments: list[str]) -> str | None:
    """Return the line that refuses a command line, if its command or one of its options went."""
    command = f"idpgan {arguments[0]}" if arguments else ""
    options = [argument.partition("=")[0] for argument in arguments[1:] if argument.startswith("--")]
    lines = map(gone, (command, *(f"{command} {option}" for option in options)))
    return next((line for line in lines if line is not None), None)
