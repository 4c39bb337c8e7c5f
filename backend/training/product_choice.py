"""Chooses how a run's 8-bit products are computed, and keeps it in the run's record.

By free memory and a measurement, neither of which says the same at every start: a resume that chose anew would not
continue the run that it resumes.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from backend.memory.product_ways import name_of_way
from backend.runs import record
from backend.runs.events.kinds import WarningEvent
from backend.training.inputs import Inputs
from backend.training.run_context import RunContext

log = logging.getLogger(__name__)

FIELD = "products"
"""Of a run's record: the name of the way, and the GPU that it was chosen on."""


def with_products(context: RunContext, inputs: Inputs, resumed: bool) -> Inputs:
    """The inputs with the way of their 8-bit products, written into the run's record; unchanged without such products.

    resumed: the run continues from a state, and keeps its way where the settings still allow it.
    """
    compute, device = inputs.cfg.memory.base_compute, inputs.device
    if compute == "bf16":
        return inputs
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    kept = _kept(context, inputs, gpu) if resumed else None
    name = name_of_way(compute, kept or inputs.auto_products, device)
    fields = {"compute": compute, "way": name, "gpu": gpu}
    record.update(context.run.record_path, lambda before: {**before, FIELD: fields})
    log.info("8-bit products: %s %s%s", compute, name, ", as before" if kept else "")
    return replace(inputs, product_way=name)


def _kept(context: RunContext, inputs: Inputs, gpu: str) -> str | None:
    """The way in the run's record, of another GPU without its kernel; None where the settings ask for something else.

    A warning where less memory is free than the way needs.
    """
    memory, fields = inputs.cfg.memory, context.run.record().get(FIELD)
    if not isinstance(fields, dict) or fields.get("compute") != memory.base_compute:
        return None
    way = str(fields.get("way"))
    size = way.partition("-")[0]
    if size not in ("fast", "small") or memory.base_products not in ("auto", size):
        return None
    if size == "fast" and inputs.auto_products == "small":
        text = "The run began with transposed copies of its 8-bit weights, for which less memory is free now"
        remedy = "It continues with them. Should memory run out, set memory.base_products to small."
        context.events.write(WarningEvent(text=text, remedy=remedy))
        log.warning("%s. %s", text, remedy)
    return way if fields.get("gpu") == gpu else size
