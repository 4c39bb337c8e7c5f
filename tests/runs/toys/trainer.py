"""A trainer without a model: everything a real one does with its run folder, in milliseconds.

    python trainer.py RUN STEPS SECONDS [die=KIND]

It saves its step in state/ every ten steps and at a stop, and goes on from there when it finds one.
"""

import logging
import os
import signal
import sys
import time

from backend.base.files import unused_path, write_atomic
from backend.runs.control import Control
from backend.runs.diagnose import explain
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.runs.logsetup import configure_logging
from backend.runs.metrics import MetricsWriter

log = logging.getLogger("toy")


def train(run, steps, seconds, die):
    events, control = EventWriter(run), Control(run)
    saved = run.state_dir / "step"
    first = int(saved.read_text()) if saved.exists() else 0
    generation = run.begin_generation(first)
    if first:
        events.write("resumed", step=first, generation=generation)
    events.write("step_total", total=steps)
    events.write("phase", phase="train")

    def save(step):
        metrics.flush()
        path = unused_path(run.checkpoints_dir / f"toy-{step:06d}.safetensors")
        write_atomic(path, f"weights of step {step}, generation {generation}")
        write_atomic(saved, str(step))
        events.write("checkpoint", step=step, file=path.name)
        events.write("state", step=step)

    with MetricsWriter(run, generation, first, commit_every_s=0.05) as metrics:
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
                events.write("stopped", step=step)
                return run.finish("stopped", step=step)
            if "save" in control.pending():
                save(step)
                control.clear("save")
            if step % 10 == 0:
                save(step)
        events.write("done", step=steps)
        run.finish("done", step=steps, lora=str(run.checkpoints()[-1].path))


if __name__ == "__main__":
    run = Run(sys.argv[1])
    run.attach()
    configure_logging(run)
    log.info("training on cpu")
    try:
        train(run, int(sys.argv[2]), float(sys.argv[3]), (sys.argv[4:] or ["die=never"])[0].removeprefix("die="))
    except Exception as error:
        diagnosis = explain(error)
        EventWriter(run).write("error", **diagnosis.as_event())
        run.finish("failed", error=diagnosis.as_event())
        raise
