"""Chooses what checkpointing keeps where that is left to the run, and keeps it in the run's record.

By free memory, which is not the same at every start: another choice has other graphs, whose last bits differ.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from backend.config.checkpointing import checkpointing_of, may_keep_attention
from backend.config.schema import with_values
from backend.runs import record
from backend.runs.events.kinds import WarningEvent
from backend.training.inputs import Inputs
from backend.training.run_context import RunContext

log = logging.getLogger(__name__)

FIELD = "checkpointing"
"""Of a run's record: attention, or graph where attention is computed again."""


def with_checkpointing(context: RunContext, inputs: Inputs, resumed: bool) -> Inputs:
    """The inputs, with ``memory.checkpointing_kind`` at attention where auto chose it.

    resumed: the run continues from a state, and keeps what it began with; one of before there was a choice computes
    attention again.
    """
    if not may_keep_attention(inputs.cfg):
        return inputs
    resolved = inputs.resolved_memory
    fits = resolved is not None and resolved.keeps_attention
    kind = "attention" if fits else checkpointing_of(inputs.cfg)
    if resumed:
        kind = str(context.run.record().get(FIELD) or checkpointing_of(inputs.cfg))
    if kind == "attention" and not fits:
        text = "The run began with attention's results kept for the backward pass, for which less memory is free now"
        remedy = "It continues with them. Should memory run out, set memory.checkpointing_kind to block."
        context.events.write(WarningEvent(text=text, remedy=remedy))
        log.warning("%s. %s", text, remedy)
    record.update(context.run.record_path, lambda before: {**before, FIELD: kind})
    log.info("checkpointing: %s", kind)
    if kind != "attention":
        return inputs
    return replace(inputs, cfg=with_values(inputs.cfg, {"memory.checkpointing_kind": kind}))
