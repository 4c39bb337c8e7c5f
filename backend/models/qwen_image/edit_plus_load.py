"""The parts of Qwen-Image-Edit-2509 and -2511 that are not quite Qwen-Image-Edit's."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from diffusers import QwenImageTransformer2DModel

from backend.models.base import Base
from backend.models.loading import Loading
from backend.models.qwen_image import edit_encode, load
from backend.models.qwen_image.edit_encode import EditStack
from backend.models.qwen_image.edit_plus import LABEL, LABEL_TOKENS

log = logging.getLogger(__name__)


def load_denoiser(base: Base | Path, loading: Loading) -> QwenImageTransformer2DModel:
    """The transformer of the model, as `backend.models.load.denoiser`; the log tells which of the two it is."""
    model = load.load_denoiser(base, loading)
    if model.config.zero_cond_t:
        log.info("Qwen-Image-Edit-2511: control pictures are told a timestep of zero (zero_cond_t)")
    else:
        log.info("Qwen-Image-Edit-2509: control pictures are told the step's own timestep (no zero_cond_t)")
    return model


def load_text(base: Base | Path, loading: Loading) -> EditStack:
    """As Qwen-Image-Edit's, with a label in front of each picture."""
    return replace(edit_encode.load_text(base, loading), label=LABEL, label_tokens=LABEL_TOKENS)
