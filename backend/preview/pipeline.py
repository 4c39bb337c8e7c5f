"""Draws pictures with a base model and LoRA files, through the code of the families that training uses."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from backend.compile.telemetry import CompileStats
from backend.config.experts import SIDES
from backend.config.schema import Config, SamplePrompt
from backend.dataset.controls import sample_sizes
from backend.latents.cache import Words
from backend.memory.block_swap import BlockSwap
from backend.memory.exclusive_device import Away, leave
from backend.memory.sample_decoder import SampleDecoder
from backend.models.common.conditioning import ConditioningEncoder
from backend.plan.graphs import Shape
from backend.plan.mode_plan import fitting_frames, fitting_size, prompt_tokens
from backend.preview.base import PreviewBase
from backend.preview.compiling import Compiled, compile_denoiser, ready_compiler
from backend.preview.controls import ControlEncoder
from backend.preview.experts import ExpertPair, by_expert, load_pair, of_side
from backend.preview.loras import LoraChoice, LoraShelf, Room
from backend.preview.prompts import PromptEncoder, choice_key, used_of
from backend.preview.slot import LoraSlot
from backend.preview.watch import Watch
from backend.runs.preview.request import check_controls
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.expected_memory import limit
from backend.training.sampling import PromptText, draw_latent, uses_negative

log = logging.getLogger(__name__)

Choices = tuple[LoraChoice, ...]


@dataclass(kw_only=True, slots=True)
class Seconds:
    """Where the time of a preview went."""

    load: float = 0.0
    text: float = 0.0
    first: float = 0.0
    """From the start to the first finished picture."""
    last: float = 0.0
    """Of the newest picture."""


@dataclass(kw_only=True, slots=True)
class Pipeline:
    """A base model that is ready to draw, with room for LoRAs."""

    base: PreviewBase
    shelf: LoraShelf
    denoiser: nn.Module
    slot: LoraSlot
    experts: ExpertPair | None
    """Both experts of a model of two, where both draw."""
    text_room: Room
    prompts: PromptEncoder
    controls: ControlEncoder
    shapes: ShapeRuntime
    compiled: Compiled
    decoder: SampleDecoder
    stack: ExitStack
    started: float
    """As `time.monotonic`."""
    seconds: Seconds = field(default_factory=Seconds)
    _held: tuple[Any, ...] | None = None
    _away: Away | None = None

    @classmethod
    def open(
        cls,
        cfg: Config,
        sets: Sequence[Choices],
        prompts: Sequence[SamplePrompt],
        watch: Watch,
        others: Sequence[Choices] = (),
        check: Callable[[torch.device], None] = lambda device: None,
    ) -> Pipeline:
        """Load everything. sets: LoRAs that are asked for, each set at its time. prompts: encoded first, with these.
        others: LoRAs that need room, too, for later. check: called before anything large loads; may raise Refused.

        The text encoders come before the denoiser and leave the GPU to it. Refused, with problem and remedy, where a
        file or a setting does not fit.
        """
        started = time.monotonic()
        base = PreviewBase.of(cfg)
        for prompt in prompts:
            check_controls(prompt, base.facts)
        if without_effect := limit(cfg.memory.vram_limit_gb, base.device):
            watch.note(without_effect)
        check(base.device)
        compiler = ready_compiler(cfg)
        shelf = LoraShelf(names=base.names, is_text=base.is_text)
        rooms = {text: shelf.room_of_all(by_expert(base, [*sets, *others]), text) for text in (False, True)}
        _say(shelf, by_expert(base, sets), watch)
        holder: list[nn.Module] = []
        controls = _control_encoder(base, holder)
        base = _with_controls(base, controls, prompts, watch)
        encoder = _encoder(base, shelf, rooms[True], holder)
        _encode_all(base, encoder, controls, prompts, sets, watch)
        text_done = time.monotonic()
        watch.phase("load")
        with ExitStack() as stack:
            denoiser = base.load_denoiser()
            holder.append(denoiser)
            slot = _slot(base, denoiser, rooms[False])
            swap = _swap(base, denoiser, stack) if base.swapped else None
            experts = load_pair(base, denoiser, slot, swap, stack)
            shapes = base.shapes()
            compiled = compile_denoiser(base, denoiser, shapes, compiler, stack)
            kept = stack.pop_all()
        pipeline = cls(
            base=base,
            shelf=shelf,
            denoiser=denoiser,
            slot=slot,
            experts=experts,
            text_room=rooms[True],
            prompts=encoder,
            controls=controls,
            shapes=shapes,
            compiled=compiled,
            decoder=_decoder(base, denoiser),
            stack=kept,
            started=started,
        )
        pipeline.seconds.text = text_done - started
        pipeline.seconds.load = time.monotonic() - text_done
        return pipeline

    def fits(self, sets: Sequence[Choices]) -> bool:
        """Whether all of these LoRAs have room, so that nothing is loaded or compiled again for them."""
        sets = by_expert(self.base, sets)
        needed = self.shelf.room_of_all(sets, False), self.shelf.room_of_all(sets, True)
        return self.slot.room.holds(needed[0]) and self.text_room.holds(needed[1])

    def draw(self, prompt: SamplePrompt, choices: Choices, watch: Watch) -> Tensor:
        """Pixels of `prompt` with these LoRAs, whose strengths are multiplied with the prompt's own.

        (3, H, W) float32 in about [-1, 1] on the CPU; of a family of clips (3, F, H, W), of which a picture is one
        frame. Raises `Interrupted` where the watch does, and Refused for control images that the family can't use.
        """
        begun = time.monotonic()
        check_controls(prompt, self.base.facts)
        self.come_back()
        choices = scaled(choices, prompt.lora_scale)
        watch.phase("text")
        self.controls.encode([prompt])
        text = self._on_device(_encode(self.base, self.prompts, self.controls, prompt, choices))
        self.hold(choices)
        self._expect(prompt)
        frames = fitting_frames(prompt.frames, self.base.geometry, self.base.video)
        sections = self.base.code.sections(frames)
        watch.phase("sample", prompt.steps * (1 if sections is None else sections.count))
        latent = draw_latent(
            prompt,
            text,
            self._predict,
            self.base.objective.sampler,
            self.base.geometry,
            self.base.device,
            watch.advance,
            self.base.code.guided,
            frames,
            sections,
        )
        watch.phase("decode")
        with self.decoder.on_device():
            pixels = self.decoder.decode(latent)
        self.seconds.last = time.monotonic() - begun
        self.seconds.first = self.seconds.first or time.monotonic() - self.started
        return pixels

    def hold(self, choices: Choices) -> None:
        """Put these LoRAs in place of those before, without a graph more."""
        wanted = tuple(map(choice_key, choices))
        if wanted != self._held:
            self._held = None
            if self.experts is None:
                self.slot.hold(used_of(self.shelf, choices))
            else:
                self.experts.hold({side: used_of(self.shelf, of_side(choices, side)) for side in SIDES})
            self._held = wanted

    def leave(self) -> None:
        """Free the GPU until the next picture."""
        if self._away is None:
            self._away = leave(self.denoiser, self.base.device)

    def come_back(self) -> None:
        """Have the denoiser on the GPU again."""
        if self._away is not None:
            self._away.come_back()
            self._away = None

    def stats(self) -> CompileStats:
        """Graphs, recompiles and seconds of compiling so far."""
        return self.compiled.stats()

    def close(self) -> None:
        """Give all memory back. The pipeline can't be used afterwards."""
        self.stack.close()
        self._away = None
        self.denoiser.to("meta")
        self.slot.lora = None
        self.decoder._vae = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _predict(
        self, noisy: list[Tensor], level: Tensor, text: list[dict[str, Tensor]], guidance: float
    ) -> list[Tensor]:
        if self.experts is not None:
            self.experts.take(float(level))
        with self.base.autocast():
            return self.base.code.predict(self.denoiser, noisy, level, text, guidance, self.shapes)

    def _on_device(self, text: PromptText) -> PromptText:
        move = ConditioningEncoder(device=self.base.device)
        (positive,) = move([text.positive])
        return PromptText(positive, None if text.negative is None else move([text.negative])[0])

    def _expect(self, prompt: SamplePrompt) -> None:
        """Tell what is counted of the shapes that the picture needs."""
        tokens = prompt_tokens(prompt, self.base.references)
        plan = self.base.text.reading([_read_sizes(self.base, prompt)])
        words = [prompt.prompt, *([prompt.negative_prompt] if uses_negative(prompt) else [])]
        for text in words:
            length = plan.fit(text, prompt.text_length)
            self.compiled.expect(Shape(self.shapes.image_size([tokens]), self.shapes.text_size([length]), 1))


def scaled(choices: Choices, strength: float) -> Choices:
    """The choices at `strength` times their own."""
    return tuple(LoraChoice(path=choice.path, strength=choice.strength * strength) for choice in choices)


def _encoder(base: PreviewBase, shelf: LoraShelf, room: Room, holder: Sequence[nn.Module]) -> PromptEncoder:
    """The text encoders, unloaded. holder: has the denoiser once it is there."""
    return PromptEncoder(
        load=base.load_text,
        facts=base.facts,
        shelf=shelf,
        room=room,
        device=base.device,
        autocast=base.autocast,
        denoiser=lambda: holder[0] if holder else None,
        transparency=base.cfg.dataset.transparency,
    )


def _control_encoder(base: PreviewBase, holder: Sequence[nn.Module]) -> ControlEncoder:
    """The VAE as an encoder, unloaded. holder: has the denoiser once it is there."""
    return ControlEncoder(
        load=base.load_vae,
        references=base.references,
        transparency=base.cfg.dataset.transparency,
        device=base.device,
        tiled=base.cfg.memory.vae_tiling == "on",
        may_tile=base.cfg.memory.vae_tiling != "off",
        denoiser=lambda: holder[0] if holder else None,
    )


def _with_controls(
    base: PreviewBase, controls: ControlEncoder, prompts: Sequence[SamplePrompt], watch: Watch
) -> PreviewBase:
    """Encode the prompts' control images; the base with room for them in its text."""
    watch.phase("controls")
    controls.encode(prompts)
    return replace(base, text=base.text.reading([_read_sizes(base, prompt) for prompt in prompts]))


def _read_sizes(base: PreviewBase, prompt: SamplePrompt) -> list[tuple[int, int]]:
    """Sizes in px of the control images as the text encoder reads them with the prompt, if it does."""
    size = fitting_size(prompt.width, prompt.height, base.geometry)
    return base.references.sizes(sample_sizes(prompt), size, read=True)


def _encode(
    base: PreviewBase, encoder: PromptEncoder, controls: ControlEncoder, prompt: SamplePrompt, choices: Choices
) -> PromptText:
    """Prompt and negative prompt with size and control images, as a run's samples have them, on the CPU."""
    size = fitting_size(prompt.width, prompt.height, base.geometry)
    sizes = {} if base.code.conditions is None else base.code.conditions(size, (0.0, 0.0), size)
    more = {**sizes, **controls.conditioning(prompt)}
    plan = base.text.reading([_read_sizes(base, prompt)])
    read = controls.read_with(prompt) if plan.reads_control else ()

    def one(words: str) -> dict[str, Tensor]:
        encoded = encoder.encode(Words(words, plan.asked(prompt.text_length), read), choices)
        kept = {name: tensor for name, tensor in encoded.items() if name != "length"}
        if plan.buckets is not None:
            kept["length"] = torch.tensor(plan.fit(words, prompt.text_length))
        return {**kept, **more}

    return PromptText(one(prompt.prompt), one(prompt.negative_prompt) if uses_negative(prompt) else None)


def _encode_all(
    base: PreviewBase,
    encoder: PromptEncoder,
    controls: ControlEncoder,
    prompts: Sequence[SamplePrompt],
    sets: Sequence[Choices],
    watch: Watch,
) -> None:
    """Encode every prompt with every set, while there is no denoiser on the GPU yet."""
    watch.phase("text")
    # set by set: of many, each file is read once, and not again for every prompt
    for choices in sets or [()]:
        for prompt in prompts:
            watch.advance()
            _encode(base, encoder, controls, prompt, scaled(choices, prompt.lora_scale))


def _slot(base: PreviewBase, denoiser: nn.Module, room: Room) -> LoraSlot:
    return LoraSlot(
        denoiser,
        room,
        cast=base.precision == "no",
        device=base.device,
        is_mine=lambda path: not base.is_text(path),
        is_fixed=base.is_swapped,
    )


def _say(shelf: LoraShelf, sets: Sequence[Choices], watch: Watch) -> None:
    """Tell what of the files is left out, and which are merged."""
    for path in dict.fromkeys(choice.path for choices in sets for choice in choices):
        needs = shelf.needs(path)
        for what in needs.left_out:
            watch.note(f"Of {path.name} is left out: {what}.")
        if needs.merged:
            watch.note(f"{path.name} is {needs.merged}: it is merged into the layers that it changes.")


def _swap(base: PreviewBase, denoiser: nn.Module, stack: ExitStack) -> BlockSwap:
    memory = base.cfg.memory
    swap = BlockSwap(
        denoiser,
        base.code.running_order(denoiser),
        memory.blocks_to_swap,
        base.device,
        ring=memory.swap_ring,
        pinned_limit_gb=memory.swap_pinned_limit_gb,
    )
    stack.callback(swap.close)
    for line in swap.facts.lines():
        log.info(line)
    return swap


def _decoder(base: PreviewBase, denoiser: nn.Module) -> SampleDecoder:
    memory = base.cfg.memory
    return SampleDecoder(
        load_vae=lambda: base.load_vae().for_decoding(),
        denoiser=denoiser,
        device=base.device,
        exclusive=memory.offload_by_turns == "on",
        tiled=memory.vae_tiling == "on",
        may_leave=memory.offload_by_turns != "off",
        may_tile=memory.vae_tiling != "off",
    )
