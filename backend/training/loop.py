"""The training loop."""

from __future__ import annotations

from typing import Literal

from backend.training.job import Job

Ending = Literal["done", "stopped"]


def train(job: Job) -> Ending:
    """Train from where `job` stands to its last step, or until a stop is asked for.

    A batch makes gradients; `gradient_accumulation_steps` batches make a step. A step's numbers are read back while
    the next one runs. NotFinite when loss or gradients are lost, StopAsked when there is nothing to save yet.
    """
    accelerator, position = job.accelerator, job.position
    job.duties.at_start()
    job.begin()
    while position.step < job.total_steps:
        if job.asks.stop:
            return job.stop()
        batch = job.next_batch()
        with accelerator.accumulate():
            loss = job.loss(batch)
            job.backward(loss)
            if accelerator.sync_gradients:
                job.clip_gradients()
            job.update()
        job.count_batch(loss)
        # With it goes the pass that made it, which must not reach into the recording of the next (compile.cuda_graphs).
        del loss
        if accelerator.sync_gradients:
            job.count_step()
            job.duties.after_step()
            job.restart_clock()
    job.records.settle()
    job.saver.save_final()
    job.duties.at_end()
    return "done"
