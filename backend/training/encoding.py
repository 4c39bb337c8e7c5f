"""Encodes pictures and captions into the caches: before the first step, and again where a file is lost later."""

from __future__ import annotations

import gc
import logging
from typing import Any

import torch

from backend.latents.cache import Words, build_latents, build_text
from backend.latents.store import CacheLost
from backend.memory.sample_decoder import tile
from backend.runs.events import EventWriter
from backend.runs.events.kinds import WarningEvent
from backend.runs.phase_progress import PhaseProgress
from backend.training.inputs import Inputs
from backend.training.requests import Requests

log = logging.getLogger(__name__)


def encode(inputs: Inputs, events: EventWriter, requests: Requests) -> None:
    """Pictures and captions that the caches lack; each encoder is gone from the GPU before the next one comes."""
    with PhaseProgress(events, "cache_latents") as progress:
        made = build_latents(inputs.latents, inputs.pictures(), lambda: _vae(inputs), requests.watched(progress))
    log.info("Latents: %d encoded", made)
    masked = [(item, fit) for item, fit in inputs.pictures() if item.mask is not None]
    if masked:
        with PhaseProgress(events, "cache_masks") as progress:
            made = inputs.masks.build(masked, requests.watched(progress))
        log.info("Masks: %d made", made)
    free_memory()
    with PhaseProgress(events, "cache_text") as progress:
        made = build_text(inputs.texts, inputs.wanted_text, lambda: _text(inputs), requests.watched(progress))
    log.info("Captions: %d encoded", made)
    free_memory()


def encode_again(inputs: Inputs, events: EventWriter, lost: CacheLost) -> None:
    """Encode what a lost cache file held, while the denoiser is loaded.

    Where that has no room, the error ends the run as any other. Drawn numbers stay as they were. Refused when the
    picture is gone too.
    """
    log.warning("%s It is encoded again.", lost.text)
    drawn = torch.get_rng_state()
    try:
        with torch.no_grad():
            if isinstance(lost.wanted[0], str):
                build_text(inputs.texts, [Words(*lost.wanted)], lambda: _text(inputs), again=True)
            else:
                build_latents(inputs.latents, [lost.wanted], lambda: _vae(inputs), again=True)
    finally:
        torch.set_rng_state(drawn)
        free_memory()
    events.write(WarningEvent(text=lost.text, remedy="It was encoded again, and training continued. Check the disk."))


def free_memory() -> None:
    """Give back what is held by objects that are gone."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _vae(inputs: Inputs) -> Any:
    vae = inputs.load_vae().to(inputs.device)
    if inputs.tiled_encode:
        tile(vae.vae)
    return vae


def _text(inputs: Inputs) -> Any:
    return inputs.code.load_text(inputs.base, inputs.text_loading)
