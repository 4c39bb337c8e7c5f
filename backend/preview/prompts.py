"""Encodes the prompts of a preview, each once for the text encoders as they are: with these LoRAs in them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from backend.compile.memory_shortage import is_out_of_vram
from backend.families.spec import FamilyFacts
from backend.latents.cache import Words, encode_words
from backend.lora.load import LoraFile
from backend.memory.exclusive_device import offloaded
from backend.models.common.clip_encoders import parts_of
from backend.models.common.text_layers import encoders_of
from backend.preview.loras import LoraChoice, LoraShelf, Room
from backend.preview.slot import LoraSlot

Autocast = Callable[[], Any]
"""Gives the context in which a family's code computes."""

_KEPT = 64
"""Prompts whose encodings stay in RAM."""


@dataclass(kw_only=True, slots=True)
class PromptEncoder:
    """The text encoders of a base model; they stay in RAM while none of their prompts is new."""

    load: Callable[[], Any]
    """Loads the family's text stack on the device."""
    facts: FamilyFacts
    shelf: LoraShelf
    room: Room
    """What the LoRAs of text encoders need."""
    device: torch.device
    autocast: Autocast
    denoiser: Callable[[], nn.Module | None]
    """What may leave the GPU while prompts are encoded, once it is loaded."""
    transparency: str = "white"
    """What see-through parts of control images are read as."""
    seconds: float = 0.0
    _stack: Any = None
    _slot: LoraSlot | None = None
    _held: tuple[Any, ...] | None = None
    _encoded: dict[tuple[Any, ...], dict[str, Tensor]] = field(default_factory=dict)

    def encode(self, words: Words, choices: tuple[LoraChoice, ...]) -> dict[str, Tensor]:
        """What the encoders give for `words`, on the CPU, with the LoRAs that change them."""
        mine = tuple(choice for choice in choices if choice.strength != 0.0 and self._changes_text(choice))
        key = (words, *((*choice_key(choice),) for choice in mine))
        if key not in self._encoded:
            if len(self._encoded) >= _KEPT:
                self._encoded.clear()
            self._encoded[key] = self._with_room(words, mine)
        return self._encoded[key]

    def _changes_text(self, choice: LoraChoice) -> bool:
        return any(map(self.shelf.is_text, self.shelf.file(choice.path).scales))

    def _with_room(self, words: Words, choices: tuple[LoraChoice, ...]) -> dict[str, Tensor]:
        """Encode with the denoiser where it is, or in RAM meanwhile when the GPU has no room for both."""
        try:
            return self._encode(words, choices)
        except RuntimeError as error:
            denoiser = self.denoiser()
            if denoiser is None or self.device.type == "cpu" or not is_out_of_vram(error):
                raise
        # outside of the except: an exception that is being handled keeps what failed in memory
        self._leave()
        with offloaded(denoiser, self.device):
            return self._encode(words, choices)

    def _encode(self, words: Words, choices: tuple[LoraChoice, ...]) -> dict[str, Tensor]:
        if self._stack is None:
            self._stack = self.load()
            self._slot = self._make_slot()
        for part in parts_of(self._stack):
            part.to(self.device)
        try:
            self._hold(choices)
            # as in training: cached captions are encoded without autocast, those of trained encoders within it
            with torch.no_grad(), self.autocast() if choices else nullcontext():
                encoded = encode_words(self._stack, words, self.transparency)
            return {name: value.cpu() for name, value in encoded.items()}
        finally:
            self._leave()

    def _make_slot(self) -> LoraSlot:
        return LoraSlot(
            encoders_of(self._stack, self.facts), self.room, cast=True, device=self.device, is_mine=self.shelf.is_text
        )

    def _hold(self, choices: tuple[LoraChoice, ...]) -> None:
        wanted = tuple(map(choice_key, choices))
        if wanted == self._held or self._slot is None:
            return
        self._held = None
        self._slot.hold(used_of(self.shelf, choices))
        self._held = wanted

    def _leave(self) -> None:
        """Give the GPU back."""
        if self._stack is None or self.device.type == "cpu":
            return
        for part in parts_of(self._stack):
            part.to("cpu")
        torch.cuda.empty_cache()


def choice_key(choice: LoraChoice) -> tuple[Any, ...]:
    """What tells one choice from another, files that were written again included."""
    stat = choice.path.stat()
    return str(choice.path), stat.st_mtime_ns, stat.st_size, choice.strength


def used_of(shelf: LoraShelf, choices: tuple[LoraChoice, ...]) -> list[tuple[LoraFile, float]]:
    """The files of the choices with their strengths."""
    return [(shelf.file(choice.path), choice.strength) for choice in choices]
