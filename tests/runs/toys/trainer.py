"""A trainer without a model: everything a real one does with its run folder, in milliseconds.

    python trainer.py RUN STEPS SECONDS [die=KIND]

It saves a state every ten steps and at a stop, laid out as the real one's, and goes on from there when it finds one.
It keeps its folder as the real one does.
"""

import json
import logging
import os
import signal
import sys
import time

from backend.base.errors import WriteFailed
from backend.base.files import atomic_folder, unused_path, write_atomic
from backend.runs.control import Control
from backend.runs.diagnose import explain
from backend.runs.events import EventWriter
from backend.runs.events.kinds import (
    CheckpointEvent,
    DoneEvent,
    PhaseEvent,
    ResumedEvent,
    StateEvent,
    StepTotalEvent,
    StoppedEvent,
    WarningEvent,
    to_fields,
)
from backend.runs.folder import Run
from backend.runs.keeper import Keeper
from backend.runs.logsetup import configure_logging
from backend.runs.metrics import MetricsWriter
from backend.runs.state_folder import state_step

log = logging.getLogger("toy")


def train(run, steps, seconds, die):
    events, control = EventWriter(run), Control(run)
    first = state_step(run.state_dir) or 0
    generation = run.begin_generation(first)
    if first:
        events.write(ResumedEvent(step=first, generation=generation))
    events.write(StepTotalEvent(total=steps))
    events.write(PhaseEvent(phase="train"))

    def save(step):
        metrics.flush()
        path = unused_path(run.checkpoints_dir / f"toy-{step:06d}.safetensors")
        write_atomic(path, f"weights of step {step}, generation {generation}")
        with atomic_folder(unused_path(run.state_dir / f"step-{step:08d}")) as state:
            write_atomic(state / "position.json", json.dumps({"position": {"step": step}}))
        write_atomic(run.state_dir / "latest", f"step-{step:08d}")
        events.write(CheckpointEvent(step=step, file=path.name))
        events.write(StateEvent(step=step))

    def tell(text, remedy):
        events.write(WarningEvent(text=text, remedy=remedy))

    with MetricsWriter(run, generation, first, commit_every_s=0.05, tell=tell) as metrics:
        for step in range(first + 1, steps + 1):
            time.sleep(seconds)
            metrics.add(step, loss=1 / step, s_per_step=seconds)
            if die == f"raise{step}":
                raise RuntimeError(
                    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
                    "23.65 GiB of which 11.06 MiB is free. Including non-PyTorch memory"
                )
            if die == f"kill{step}":
                metrics.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            if "stop" in control.pending():
                save(step)
                events.write(StoppedEvent(step=step))
                return run.finish("stopped", step=step)
            if "save" in control.pending():
                save(step)
                control.clear("save")
            if step % 10 == 0:
                try:
                    save(step)
                except WriteFailed as error:  # the real one too tries again later
                    log.warning("step %d could not be saved: %s", step, error)
        events.write(DoneEvent(step=steps))
        run.finish("done", step=steps, lora=str(run.checkpoints()[-1].path))


if __name__ == "__main__":
    run = Run(sys.argv[1])
    run.attach()
    configure_logging(run)
    log.info("training on cpu")
    keeper = Keeper(run, EventWriter(run), look_s=0.05, beat_s=0.2)
    try:
        with keeper:
            train(run, int(sys.argv[2]), float(sys.argv[3]), (sys.argv[4:] or ["die=never"])[0].removeprefix("die="))
    except Exception as error:
        diagnosis = explain(error)
        EventWriter(run).write(diagnosis.as_event())
        run.finish("failed", error=to_fields(diagnosis.as_event()))
        raise
