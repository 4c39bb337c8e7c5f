"""What the CLIP text encoders of a family are called in LoRA files, by its facts alone: no model is imported."""

from __future__ import annotations

from backend.families.spec import FamilyFacts


def clip_words(facts: FamilyFacts) -> dict[str, str]:
    """CLIP text encoders of a family -> what sd-scripts calls them: ``te`` where there is one, else by number."""
    texts = [part for part in facts.parts if part.name.startswith("text_encoder")]
    clips = [part.name for part in texts if part.class_names[0].startswith("CLIPText")]
    if len(texts) == 1:
        return dict.fromkeys(clips, "te")
    return {name: f"te{name.removeprefix('text_encoder').removeprefix('_') or 1}" for name in clips}
