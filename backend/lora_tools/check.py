"""Checks which programs load a LoRA file, key by key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from backend.base.errors import Refused
from backend.lora_tools.base_models import OpenModel, feature_size, guessed_family
from backend.lora_tools.diffusers_keys import diffusers_verdict
from backend.lora_tools.key_maps import comfyui, kohya
from backend.lora_tools.lora_layers import RawLora
from backend.lora_tools.verdict import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What the programs make of a file. family: by whose layers it was checked."""

    file: str
    family: str
    verdicts: list[Verdict]

    def as_json(self) -> dict[str, Any]:
        """The check as plain values."""
        rows = [
            {
                "program": each.program,
                "total": each.total,
                "loaded": each.loaded,
                "ignored": each.ignored,
                "error": each.error,
                "note": each.note,
                "sentence": each.sentence(),
            }
            for each in self.verdicts
        ]
        return json.loads(json.dumps({"file": self.file, "family": self.family, "programs": rows}))


def checked(file: RawLora, base: OpenModel | None = None) -> Check:
    """Which keys each program takes. base: the model that it is for; as published, by the file's names, without one.

    Refused where the names are those of no known family.
    """
    if base is not None:
        facts, denoiser, names = base.facts, base.denoiser, base.names
    else:
        stems = {stem: feature_size(file.size(layer).items()) for stem, layer in file.layers.items()}
        guess = guessed_family(stems, file.metadata)
        if guess is None:
            text = f"{file.path.name} names its layers as no family here does ({next(iter(file.shapes))})"
            raise Refused(text, "Give the base model that it is for with --base.")
        facts, denoiser, names = guess
    tensors = {key: file.tensor(key) for key in file.shapes}
    verdicts = [
        diffusers_verdict(tensors, facts, denoiser, names),
        comfyui(tensors, facts, names),
        kohya(tensors, facts, names),
    ]
    return Check(file=str(file.path), family=facts.title, verdicts=verdicts)
