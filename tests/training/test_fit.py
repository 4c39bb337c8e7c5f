"""The check that a model fits the card, as arithmetic."""

from __future__ import annotations

from pathlib import Path

from backend.memory import fit
from backend.models.flux.facts import FACTS

GB = 10**9
TEXT = ("text_encoder", "text_encoder_2")
FLUX_BF16 = {"transformer": 24 * GB, "text_encoder": GB // 4, "text_encoder_2": 9 * GB, "vae": GB // 6}


def needs(trained: int = 45_000_000) -> list[fit.Need]:
    return fit.stages(FLUX_BF16, TEXT, "transformer", trained)


def test_stages_hold_their_parts_one_after_the_other() -> None:
    text, vae, training = needs()
    assert text.total == GB // 4 + 9 * GB + fit.RESERVE
    assert vae.total == GB // 6 + fit.RESERVE
    assert training.total == 24 * GB + 45_000_000 * 16 + fit.RESERVE


def test_a_card_that_fits_is_not_refused_and_one_byte_less_is() -> None:
    largest = max(need.total for need in needs())
    assert fit.problems(needs(), largest, 80 * GB, "a card") == []
    refused = fit.problems(needs(), largest - 1, 80 * GB, "a card")
    assert len(refused) == 1
    assert "transformer 24.0 GB" in refused[0].text and "LoRA and optimizer 720.0 MB" in refused[0].text
    assert "other programs" in refused[0].remedy


def test_every_stage_that_can_not_fit_is_told_at_once() -> None:
    refused = fit.problems(needs(), 7 * GB, 8 * GB, "a small card")
    assert ["encoding captions" in p.text for p in refused] == [True, False]
    assert "training needs" in refused[1].text and "a small card has 7.0 GB free of 8.0 GB" in refused[1].text
    assert "more memory" in refused[1].remedy


def test_weights_are_counted_by_number_and_not_by_file(tiny_flux: Path) -> None:
    part = FACTS.part("vae")
    on_disk = sum(path.stat().st_size for path in (tiny_flux / "vae").glob("*.safetensors"))
    full, half = fit.weight_bytes(tiny_flux, part, 4), fit.weight_bytes(tiny_flux, part, 2)
    assert full == 2 * half and 0.8 * on_disk < full <= on_disk
