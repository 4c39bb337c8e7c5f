"""Draws sample pictures and clips during training: the prompts of the settings, with the LoRA as it is."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL import Image, PngImagePlugin
from torch import Tensor

from backend.base.errors import WriteFailed
from backend.base.files import unused_path, write_atomic
from backend.config.schema import Config, SamplePrompt
from backend.families.spec import FamilyFacts, Geometry, VideoRule
from backend.memory.sample_decoder import SampleDecoder
from backend.models.common.conditioning import Conditioning, ConditioningEncoder
from backend.models.common.guidance import guided
from backend.models.family import Sections
from backend.objectives import flow
from backend.objectives.base import Steps
from backend.plan.mode_plan import fitting_frames, fitting_size
from backend.runs.events import EventWriter
from backend.runs.events.kinds import SampleEvent, WarningEvent
from backend.runs.folder import Run
from backend.runs.phase_progress import PhaseProgress
from backend.runs.samples import is_clip, sheet_of
from backend.training.requests import Requests
from backend.training.sample_clips import frames_of, read_comment, write_clip

log = logging.getLogger(__name__)

Predict = Callable[[list[Tensor], Tensor, list[dict[str, Tensor]], float], list[Tensor]]
"""Noisy latents, levels (B,), text and guidance -> predictions, through the blocks compiled for training."""


Guide = Callable[[Tensor, Tensor, float], Tensor]
"""Outputs for a prompt and for its negative, and the scale of true guidance -> the output to continue with."""


class Scaled(Protocol):
    """What holds a LoRA at a strength while a picture is drawn: `Lora` itself, or both experts."""

    def scaled(self, strength: float) -> AbstractContextManager[None]: ...


class Interrupted(Exception):
    """The run was asked to stop while a picture was being drawn."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """The conditioning of a prompt and of its negative; `negative` is None where it has no effect."""

    positive: Conditioning
    negative: Conditioning | None


def uses_negative(prompt: SamplePrompt) -> bool:
    """True when the negative prompt takes part: only a true guidance above 1 weighs against it."""
    return prompt.true_cfg_scale > 1.0


@torch.no_grad()
def draw_latent(
    prompt: SamplePrompt,
    text: PromptText,
    predict: Predict,
    sampler: Callable[[int, int], Steps],
    geometry: Geometry,
    device: torch.device,
    check: Callable[[], None] = lambda: None,
    guide: Guide = guided,
    frames: int = 1,
    sections: Sections | None = None,
) -> Tensor:
    """The finished latent (C, h, w), or (C, f, h, w), float32 of `prompt`, by the sampler of the family's objective.

    The start noise is that of diffusers' pipelines with a CPU generator of the same seed. sampler: (steps, image
    tokens) -> a fresh one. check: called before each step; may raise Interrupted. guide: the family's true guidance.
    frames: of a clip, a length that the family has. sections: of a clip that is drawn in such.
    """
    width, height = fitting_size(prompt.width, prompt.height, geometry)
    source = torch.Generator("cpu").manual_seed(prompt.seed)

    def drawn(part: PromptText) -> Tensor:
        steps = sampler(prompt.steps, geometry.image_tokens(width, height, frames))
        noise = flow.noise(geometry.latent_shape(width, height, frames), source).to(device)
        return _denoised(prompt, part, predict, steps, noise, check, guide)

    if sections is None:
        return drawn(text)
    for _ in range(sections.count):
        negative = None if text.negative is None else sections.told(text.negative)
        sections.add(drawn(PromptText(sections.told(text.positive), negative)))
    return sections.whole()


def _denoised(
    prompt: SamplePrompt,
    text: PromptText,
    predict: Predict,
    steps: Steps,
    noise: Tensor,
    check: Callable[[], None],
    guide: Guide,
) -> Tensor:
    """The latent that the steps make of the noise."""
    x, device = steps.start(noise), noise.device
    for number, now in enumerate(steps.levels):
        check()
        level = torch.tensor([now], dtype=torch.float32, device=device)
        seen = steps.seen(x, number)
        output = predict([seen], level, [text.positive], prompt.guidance_scale)[0].float()
        if text.negative is not None:
            away = predict([seen], level, [text.negative], prompt.guidance_scale)[0].float()
            output = guide(output, away, prompt.true_cfg_scale)
        x = steps.step(x, output, number)
    return x


def to_picture(pixels: Tensor) -> Image.Image:
    """RGB picture of pixels (3, H, W) in [-1, 1]; values beyond are cut off. ValueError when they are not finite."""
    if not torch.isfinite(pixels).all():
        raise ValueError("the sample holds NaN")
    values = ((pixels.float().cpu() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(values.permute(1, 2, 0).numpy(), "RGB")


def write_picture(path: Path, picture: Image.Image, prompt: SamplePrompt, facts: Mapping[str, Any]) -> None:
    """Save a PNG that says how it was made: ``parameters`` as other tools read it, ``monotile`` as JSON."""
    info = PngImagePlugin.PngInfo()
    for name, text in sample_texts(prompt, picture.size, facts).items():
        info.add_itxt(name, text)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", pnginfo=info)
    write_atomic(path, buffer.getvalue())


def write_sample(
    path: Path, pixels: Tensor, prompt: SamplePrompt, facts: Mapping[str, Any], video: VideoRule | None
) -> Path | None:
    """Save what was drawn as the picture or clip that `path` names; the picture of a clip's frames, if it is one.

    pixels: (3, H, W), of a model of clips (3, F, H, W), in [-1, 1]. ValueError when they are not finite.
    """
    if not is_clip(path):
        write_picture(path, to_picture(pixels if pixels.ndim == 3 else pixels[:, 0]), prompt, facts)
        return None
    assert video is not None
    frames, height, width = pixels.shape[1:]
    texts = sample_texts(prompt, (width, height), {**facts, "fps": video.rate})
    texts["parameters"] += f", Frames: {frames}, FPS: {video.rate:g}"
    return write_clip(path, [*frames_of(pixels)], video.rate, texts)


def video_rule(cfg: Config, facts: FamilyFacts) -> VideoRule | None:
    """How samples become clips: at the rate that the run's own clips are taken at; None of a family of pictures."""
    rule, rate = facts.video, cfg.video.target_fps
    return rule if rule is None or rate is None else replace(rule, rate=rate)


def sample_texts(prompt: SamplePrompt, size: tuple[int, int], facts: Mapping[str, Any]) -> dict[str, str]:
    """How a sample was made, by the name of its text chunk."""
    whole = json.dumps({**prompt.model_dump(), **facts}, ensure_ascii=False)
    return {"parameters": parameters_line(prompt, size), "monotile": whole}


def parameters_line(prompt: SamplePrompt, size: tuple[int, int]) -> str:
    """Prompt and settings in the form that AUTOMATIC1111's web UI began and most viewers read."""
    negative = f"\nNegative prompt: {prompt.negative_prompt}" if prompt.negative_prompt else ""
    settings = (
        f"Steps: {prompt.steps}, Sampler: Euler, CFG scale: {prompt.true_cfg_scale:g}, "
        f"Distilled CFG Scale: {prompt.guidance_scale:g}, Seed: {prompt.seed}, Size: {size[0]}x{size[1]}, "
        f"LoRA scale: {prompt.lora_scale:g}"
    )
    return f"{prompt.prompt}{negative}\n{settings}"


@dataclass(kw_only=True, slots=True)
class Sampler:
    """Draws all prompts of a run at a step."""

    run: Run
    events: EventWriter
    requests: Requests
    prompts: Sequence[SamplePrompt]
    texts: Sequence[PromptText]
    """Of the prompts, in their order."""
    predict: Predict
    sampler: Callable[[int, int], Steps]
    """(steps, image tokens) -> a fresh one."""
    weights: Scaled
    decoder: SampleDecoder
    """Latents to pixels; where the denoiser has to leave for it, all prompts are decoded at one turn."""
    geometry: Geometry
    device: torch.device
    conditioning: ConditioningEncoder
    guide: Guide = guided
    """The family's true guidance."""
    video: VideoRule | None = None
    """How clips are made, of a family that makes them; its rate is the run's."""
    sections: Callable[[int], Sections | None] = lambda frames: None
    """The sections of a sample of so many frames, as the family draws them; None where it is drawn at once."""
    drawn_until: int = 0
    """The step that the run resumed at; pictures of steps up to it that are there already are not drawn again."""

    def draw(self, step: int) -> None:
        """One PNG or MP4 a prompt in ``samples/``, with an event each. Ends early when a stop is asked for."""
        wanted = [
            number
            for number in range(len(self.prompts))
            if step > self.drawn_until or not _shows(self._path(step, number), self.prompts[number], step)
        ]
        total = sum(self.prompts[number].steps * self._sections(number) for number in wanted)
        waiting: list[tuple[int, Tensor]] = []
        try:
            with PhaseProgress(self.events, "sample", total=total) as progress:
                for number in wanted:
                    waiting.append((number, self._latent(number, progress)))
                    if not self.decoder.exclusive:
                        self._finish(step, waiting)
        except Interrupted:
            log.info("The samples of step %d were left out: the run was asked to stop", step)
        self._finish(step, waiting)

    def _path(self, step: int, number: int) -> Path:
        ending = "png" if self._frames(number) == 1 else "mp4"
        return self.run.samples_dir / f"step{step:08d}-{number}.{ending}"

    def _frames(self, number: int) -> int:
        return fitting_frames(self.prompts[number].frames, self.geometry, self.video)

    def _sections(self, number: int) -> int:
        sections = self.sections(self._frames(number))
        return 1 if sections is None else sections.count

    def _latent(self, number: int, progress: PhaseProgress) -> Tensor:
        def check() -> None:
            if self.requests.stop:
                raise Interrupted
            progress.advance()

        prompt, text = self.prompts[number], self.texts[number]
        with self.weights.scaled(prompt.lora_scale), torch.no_grad():
            # one by one, as pipelines do
            (positive,) = self.conditioning([text.positive])
            negative = None if text.negative is None else self.conditioning([text.negative])[0]
            on_device = PromptText(positive, negative)
            return draw_latent(
                prompt,
                on_device,
                self.predict,
                self.sampler,
                self.geometry,
                self.device,
                check,
                self.guide,
                self._frames(number),
                self.sections(self._frames(number)),
            )

    def _finish(self, step: int, waiting: list[tuple[int, Tensor]]) -> None:
        """Decode and write the latents of these prompts, and empty the list."""
        if not waiting:
            return
        with self.decoder.on_device():
            for number, latent in waiting:
                self._write(step, number, latent)
        waiting.clear()

    def _write(self, step: int, number: int, latent: Tensor) -> None:
        prompt, sheet = self.prompts[number], None
        try:
            pixels = self.decoder.decode(latent)
            path = self._path(step, number)
            # of steps that are trained once more after a resume, the newest picture counts
            path = path if _shows(path, prompt, step) else unused_path(path)
            sheet = write_sample(path, pixels, prompt, {"step": step, "run": self.run.name}, self.video)
        except (ValueError, WriteFailed) as error:
            remedy = getattr(error, "remedy", "Lower the learning rate if it happens again.")
            self.events.write(WarningEvent(text=f"Sample {number} of step {step} is missing: {error}", remedy=remedy))
            return
        file, beside = (each and each.relative_to(self.run.path).as_posix() for each in (path, sheet))
        self.events.write(SampleEvent(step=step, prompt_index=number, file=file, prompt=prompt.prompt, sheet=beside))


def _shows(path: Path, prompt: SamplePrompt, step: int) -> bool:
    """True when `path` is a whole picture or clip of this prompt at this step."""
    try:
        facts = json.loads(_read_facts(path))
    except (OSError, KeyError, ValueError, SyntaxError):
        return False
    wanted = {**json.loads(prompt.model_dump_json()), "step": step}
    # what an earlier version did not know is not in its files, as if it were empty
    return {name: facts.get(name) for name in wanted} == wanted


def _read_facts(path: Path) -> str:
    """How a sample was made, as its file says. OSError, ValueError, KeyError or SyntaxError where none says it."""
    if is_clip(path):
        return read_comment(path) if sheet_of(path).is_file() else ""
    with Image.open(path) as picture:
        picture.load()
        return picture.info["monotile"]
