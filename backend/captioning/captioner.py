"""Loads a captioning model and describes batches of images with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from backend.base.errors import Refused
from backend.captioning.readers import READERS
from backend.runs.captioning.model_folder import CaptionModel, chosen_precision
from backend.runs.captioning.request import CaptionOptions

log = logging.getLogger(__name__)

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_MARKS = 2
"""Places that the first and the last token take."""
_COPY = "Copy the folder again from where the model came from, with all of its files."


def device_of(options: CaptionOptions) -> torch.device:
    """The device that is meant. Refused for a GPU that is not there, and for 8 and 4 bits on the CPU."""
    name = options.device
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= gpus:
        text = f"there is no GPU {name} that torch can use" if gpus else "there is no GPU that torch can use"
        raise Refused(text, "Choose the device auto or cpu; launcher.py doctor says what is missing.", "device")
    if device.type == "cpu" and options.precision in ("int8", "nf4"):
        text = f"{options.precision} weights need an NVIDIA GPU"
        raise Refused(text, "Choose the precision auto, or a GPU as the device.", "precision")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


class Captioner:
    """A model on its device, with what prepares its inputs."""

    def __init__(self, model: CaptionModel, options: CaptionOptions) -> None:
        """Load. Refused for a folder that can't be loaded; torch.OutOfMemoryError where it does not fit."""
        self.device = device_of(options)
        self.asked = options.asked(model)
        # what a person needs to know of a folder is said here, in words
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        try:
            self.reader = READERS[model.model_type](model, self.asked, options.megapixels)
            self.network = _load(model, options, self.device)
        except (Refused, torch.OutOfMemoryError):
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
            log.debug("The model can't be loaded", exc_info=True)
            words = str(error).strip().splitlines()
            why = words[0][:300] if words else type(error).__name__
            raise Refused(f"{model.folder} can't be loaded: {why}", _COPY, "model") from error
        self.tokens = model.tokens(options.max_tokens)
        self.generation: dict[str, Any] = {"num_beams": model.beams(options.beams), "do_sample": False}

    @torch.inference_mode()
    def describe(self, images: Sequence[Image.Image]) -> list[str]:
        """A caption of each RGB image. torch.OutOfMemoryError when the batch does not fit."""
        inputs = self.reader.inputs(images, self.network)
        dtype = self.network.dtype
        placed = {
            name: value.to(self.device, dtype) if value.is_floating_point() else value.to(self.device)
            for name, value in inputs.items()
        }
        most = min(self.tokens, self._room(inputs))
        tokens = self.network.generate(**placed, max_new_tokens=most, **self.generation)
        return self.reader.captions(tokens.cpu(), inputs)

    def _room(self, inputs: dict[str, Tensor]) -> int:
        """Tokens that still fit into the places that the language model has, at least 1."""
        config = self.network.config.get_text_config(decoder=True)
        prompt = 0 if config.is_encoder_decoder or "input_ids" not in inputs else inputs["input_ids"].shape[1]
        # T5, of some BLIP-2, has relative positions: any length has a place
        places = getattr(config, "max_position_embeddings", None)
        return self.tokens if places is None else max(1, places - prompt - _MARKS)


def _load(model: CaptionModel, options: CaptionOptions, device: torch.device) -> PreTrainedModel:
    precision = chosen_precision(options.precision, device.type == "cuda")
    extra: dict[str, Any] = {"dtype": _DTYPES.get(precision, torch.bfloat16)}
    if precision == "int8":
        extra["quantization_config"] = BitsAndBytesConfig(load_in_8bit=True)
    elif precision == "nf4":
        extra["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    if device.type == "cuda":
        extra["device_map"] = {"": device}
    network, account = AutoModelForImageTextToText.from_pretrained(
        model.folder,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        **extra,
    )
    # transformers fills what is missing with random numbers
    lacking = sorted(account["missing_keys"]) + sorted(str(each[0]) for each in account["mismatched_keys"])
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        text = f"{model.folder} lacks weights of the model that its config.json describes: {', '.join(lacking[:3])}"
        raise Refused(f"{text}{more}", _COPY, "model")
    return network.eval()
