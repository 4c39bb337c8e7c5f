"""Imports what LoRAs need of peft, in an order that keeps bitsandbytes out."""

from __future__ import annotations

from backend.base.library_imports import without_bitsandbytes

with without_bitsandbytes():
    from peft import LoraConfig, inject_adapter_in_model
    from peft.import_utils import is_bnb_available
    from peft.tuners.lora import Linear as LoraLinear
    from peft.tuners.lora import LoraLayer
    from peft.tuners.lora.layer import LoraVariant

    # peft keeps the first answer, and asks for each layer that it wraps.
    is_bnb_available()

__all__ = ["LoraConfig", "LoraLayer", "LoraLinear", "LoraVariant", "inject_adapter_in_model"]
