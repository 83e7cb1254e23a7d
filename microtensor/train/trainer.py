"""Trainer: the training loop with everything around it: a run can be watched, stopped and gone on with.

A run that was stopped, by Ctrl-C or by the power going off, and resumed from its checkpoint ends with the
same bits as one that was not: weights, optimiser, schedule, order of the data and dropout masks.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from microtensor.nn import Module
from microtensor.train.allocator import peak_memory
from microtensor.train.arguments import check_arguments, check_best, check_callables
from microtensor.train.checkpoint import Checkpoint, check_checkpoint, save_checkpoint, state_digests
from microtensor.train.evaluation import Best, best_state, evaluated
from microtensor.train.files import explaining
from microtensor.train.folder import CheckpointFolder, load_marked, mark_of
from microtensor.train.generators import Generators
from microtensor.train.interrupt import Interrupt, Stopped
from microtensor.train.parallel import world
from microtensor.train.report import Meter, Report, prepare_log
from microtensor.train.serialize import Path
from microtensor.train.step import Step, parameters_of
from microtensor.train.stream import BatchStream

__all__ = ["Trainer"]


class Trainer:
    """Trains a model for max_steps optimiser steps: `fit()` starts, `resume()` goes on from a checkpoint.

    loss_fn(model, batch) returns the loss, or (loss, n_tokens) if it is a mean over n_tokens, which counts
    tokens per second, too. The gradient of a step is that of the mean over all tokens of `accumulate`
    batches, Σ nᵢ·gᵢ / Σ nᵢ (equal counts: to the bit that of the losses' mean), scaled to a norm of at most
    `grad_clip`, over what the optimiser steps; the loss is weighted alike. A batch of 0 tokens counts for
    nothing. evaluate(model) returns a number or a dict of numbers; it is called every `eval_every` steps with
    the model in eval mode and nothing recorded. A name that a record has itself gets "eval_" in front: "loss"
    of evaluate is logged as "eval_loss". Each of `callbacks` is called with the trainer after every step; it
    may read `step`, `loss`, `lr`, `best`, `history` and call `stop()`.

    best: evaluate's name of a number (of a plain number, "evaluation") whose best value so far, the smallest
    or the greatest by `best_mode`, is in `best.value` with its step in `best.step`; the checkpoint of that
    step, `best_checkpoint`, stays whatever `keep` is. patience: after so many evaluations without a better
    one the run ends, as at max_steps. Both go on where they were in a run that is resumed.

    checkpoint: a folder, of which the newest `keep` checkpoints are kept, or a name ending in .safetensors;
    written every `checkpoint_every` steps, at the end and after a signal. A folder belongs to one run: `fit`
    and `load` refuse one that holds another, and one that another process trains in (a lock file names it).
    generators: what the data or the model draws from beside the default generator and the loader's. config:
    stored with it. log: the file of one JSON line per `log_every` steps; if not given, log.jsonl in the
    checkpoint folder, or NAME.jsonl beside NAME.safetensors; a file with other lines
    is refused. A record has the step, its loss, lr, grad_norm (before clipping) and bytes_kept (for
    backward), tokens_per_second since the last one and peak_memory.

    Ctrl-C and SIGTERM let the step in progress finish, write a checkpoint and raise `Stopped`, a
    KeyboardInterrupt that says how to go on; another one, a second or more later, stops at once, and the
    last checkpoint stays. What comes sooner is a key that bounces.

    Under mpirun, `world` are the ranks, and each computes its share of each batch: axis 0 of its tensors is
    divided. All must draw the same batches. To rounding, the run is that of one process, dropout's masks
    included if rows come first in what is dropped, and if loss_fn draws nothing else: those numbers are other
    ones on each rank. loss_fn gets a share and is weighted by its n_tokens, or by rows if it counts none.
    evaluate and callbacks run on every rank; one writes (`world.is_writer`). What one rank stops all stop.
    When one is gone, RuntimeError on the others says which.

    Raises: ValueError for impossible numbers, and an optimizer that holds none of the model's parameters;
    TypeError for what is no number or no function; RuntimeError when the loss or the gradient is not finite:
    it names the step and, from running that step again with anomaly detection, the op and the line.
    Source: ours; the loop of "Attention Is All You Need", §5, with what a resumed run needs.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Any,
        train_loader: Iterable[Any],
        *,
        loss_fn: Callable[[Any, Any], Any],
        max_steps: int,
        scheduler: Any = None,
        grad_clip: float | None = None,
        accumulate: int = 1,
        eval_every: int | None = None,
        evaluate: Callable[[Any], Any] | None = None,
        best: str | None = None,
        best_mode: str = "min",
        patience: int | None = None,
        checkpoint: Path | None = None,
        checkpoint_every: int | None = 1000,
        keep: int | None = 3,
        callbacks: Iterable[Callable[[Trainer], Any]] = (),
        log: Path | None = None,
        log_every: int = 10,
        progress: bool = True,
        generators: Generators | None = None,
        config: Any = None,
    ) -> None:
        counts = {"max_steps": max_steps, "accumulate": accumulate, "eval_every": eval_every, "keep": keep,
                  "checkpoint_every": checkpoint_every, "log_every": log_every,
                  "patience": patience}  # fmt: skip
        callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else callbacks
        check_arguments(counts, grad_clip, train_loader, optimizer, scheduler)
        check_callables(loss_fn, evaluate, eval_every, callbacks)
        if not {id(p) for p in model.parameters()} & {id(p) for p in parameters_of(optimizer)}:
            raise ValueError("Trainer: optimizer steps nothing of the model; give it model.parameters()")
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.train_loader, self.loss_fn, self.max_steps = train_loader, loss_fn, max_steps
        self.grad_clip, self.accumulate = grad_clip, accumulate
        self.eval_every, self.evaluate = eval_every, evaluate
        self.checkpoints = None if checkpoint is None else CheckpointFolder(checkpoint, keep)
        self.best = Best(best, best_mode, patience)
        check_best(self.best, evaluate, self.checkpoints)
        self.checkpoint_every, self.callbacks, self.progress = checkpoint_every, callbacks, progress
        self.log, self.log_every = self._log_path(log), log_every
        self.generators, self.config = dict(generators or {}), config
        self.step = 0  # optimiser steps taken
        self.loss = self.lr = math.nan  # of the last step
        self.grad_norm = math.nan  # of the last step, before clipping
        self.history: list[dict[str, Any]] = []  # the records of this process, as in the log
        self._stream, self._meter = BatchStream(train_loader, self.generators), Meter()
        self._saved: str | None = None  # the last checkpoint written or loaded, and its step
        self._saved_step = -1
        self._saved_mark: Any = None  # tells that file from another one of its name
        self._trim_due = False  # the log may have lines beyond the step that was loaded
        self._stopping = False
        self.world = world()  # the ranks of a parallel run

    # --- what a user calls ----------------------------------------------------------------------------------

    def fit(self) -> list[dict[str, Any]]:
        """Train up to max_steps and return the log records of this process.

        After stop() or Ctrl-C another fit() goes on in the same process. What checkpoints shall hold is
        looked at first, so that nothing is trained that could not be saved.
        Raises: RuntimeError if the loss or the gradient is not finite, and while another process trains in
        the folder; ValueError if an earlier run's checkpoints are in the way; TypeError naming what cannot be
        saved; OSError naming the last good checkpoint when none can be written; Stopped after a signal.
        Source: ours.
        """
        if self._over():
            return self.history
        with self._own_folder():
            self._prepare()
            self._run()
        return self.history

    def _run(self) -> None:
        self._stopping = False
        self.model.train()
        with Interrupt() as interrupt:
            try:
                with self.world.running(self._way_on):
                    self.world.check_equal(lambda: state_digests(self.model, self.optimizer, **self._rest()))
                    with self._report() as report:
                        while not self.world.any(self._over() or self._stopping or interrupt.requested):
                            self._train_step()
                            self._after_step(report)
                    folder = self.checkpoints
                    if folder and (self._saved_step, self._saved) != (self.step, folder.path_at(self.step)):
                        self.save()
                    stopped = self.world.any(interrupt.requested)
            except KeyboardInterrupt:
                raise Stopped(self._farewell(), interrupt.number) from None
        if stopped:
            raise Stopped(self._farewell(), interrupt.number)

    def _report(self) -> Report:
        log, progress = (self.log, self.progress) if self.world.is_writer else (None, False)
        return Report(self.max_steps, self.step, log=log, progress=progress)

    def _over(self) -> bool:
        return self.step >= self.max_steps or self.best.over

    def resume(self, path: Path | None = None) -> list[dict[str, Any]]:
        """`load(path)`, then `fit()`.

        Raises: as `load` and `fit`.
        Source: ours.
        """
        self.load(path)
        return self.fit()

    def load(self, path: Path | None = None) -> None:
        """Put everything into the state of a checkpoint, by default the newest; nothing is trained.

        path: a file, or a folder, whose newest checkpoint is taken; where that is damaged, the newest that is
        not, with a warning that names both.
        Raises: FileNotFoundError without a checkpoint; ValueError naming what is damaged or does not fit, and
        if our own folder holds another run than the one loaded, nothing being changed.
        Source: ours.
        """
        checkpoint, mark = self._read(path)
        found, best = checkpoint.path, best_state(checkpoint.extra)
        if self.checkpoints is not None:
            self.checkpoints.refuse_other(found, checkpoint.step, mark)
        if checkpoint.scheduler is not None and self.scheduler is None:
            raise ValueError(f"Trainer: {found!r} has a {checkpoint.scheduler['class']}; give scheduler=")
        self.best.check_state_dict(found, best)
        checkpoint.restore(self.model, self.optimizer, scheduler=self.scheduler, loader=self._stream,
                           generators=self.generators)  # fmt: skip
        self.best.load_state_dict(best)
        self.step = self._saved_step = checkpoint.step
        self._saved, self._saved_mark = found, mark
        self.history = [record for record in self.history if record["step"] <= self.step]
        self._trim_due = True  # in fit: whoever only looks at a checkpoint changes no file

    def save(self) -> str:
        """Write a checkpoint of the present step and return its path.

        Raises: RuntimeError without a checkpoint folder, and for weights that are not finite; OSError, with
        the last good checkpoint, if it cannot be written.
        Source: ours.
        """
        if self.checkpoints is None:
            raise RuntimeError("Trainer: there is no place for checkpoints; give Trainer(checkpoint=folder)")
        return self._save(self.checkpoints, "step")

    @property
    def best_checkpoint(self) -> str | None:
        """The path of the best checkpoint; None if there is none.

        Source: ours.
        """
        found = [] if self.checkpoints is None else list(self.checkpoints.steps("best").values())
        return found[-1] if found else None

    def _save(self, folder: CheckpointFolder, kind: str) -> str:
        self._refuse_nonfinite()
        with self._own_folder():
            path = folder.path_at(self.step, kind)
            if self.world.is_writer:
                what = f"Trainer: {path!r} could not be written"
                with explaining(what, f"make room for it; {self._kept()}"):
                    save_checkpoint(path, self.model, self.optimizer, **self._rest())
            self._saved, self._saved_step, self._saved_mark = path, self.step, mark_of(path)
            if self.world.is_writer:
                folder.prune(path)
        return path

    def stop(self) -> None:
        """End `fit` after the step in progress, as if max_steps were reached: for callbacks.

        Source: ours.
        """
        self._stopping = True

    # --- one step -------------------------------------------------------------------------------------------

    def _train_step(self) -> None:
        start = time.perf_counter()
        self.model.zero_grad()  # also what the optimiser does not step: its gradients would add up
        self.optimizer.zero_grad(set_to_none=True)
        step = Step(self.step + 1, self.model, self.loss_fn, self.generators)
        stepped = parameters_of(self.optimizer)
        step.backward(self._stream, self.accumulate, stepped, measure=self._record_due(self.step + 1))
        step.clip(stepped, self.grad_clip)
        self.optimizer.step()
        self.lr = float(self.optimizer.param_groups[0]["lr"])
        if self.scheduler is not None:
            self.scheduler.step()
        self.step += 1
        self.loss, self.grad_norm, self._bytes_kept = step.loss, step.grad_norm, step.bytes_kept
        self._meter.add(step.tokens, time.perf_counter() - start)

    def _after_step(self, report: Report) -> None:
        report.advance(self._numbers)
        due = self._evaluation_due(self.step)
        result = self._evaluate() if due else {}
        if self._record_due(self.step):
            self._record(report, result)
        if due and self._is_best(result) and self.checkpoints is not None:
            self._save(self.checkpoints, "best")
        for callback in self.callbacks:
            callback(self)
        if self.checkpoints is not None and self.checkpoint_every and self.step % self.checkpoint_every == 0:
            self.save()

    def _is_best(self, result: dict[str, float]) -> bool:
        try:
            return self.best.see(result, self.step)
        except ValueError as error:
            if self.checkpoints is not None:
                self.save()  # a misspelt name, known at the first evaluation only, costs no step
            raise ValueError(f"{error} ({self._kept()})") from None

    def _evaluation_due(self, step: int) -> bool:
        return self.eval_every is not None and step % self.eval_every == 0

    def _record_due(self, step: int) -> bool:
        return step % self.log_every == 0 or step == self.max_steps or self._evaluation_due(step)

    def _evaluate(self) -> dict[str, float]:
        assert self.evaluate is not None
        position = self._stream.state_dict()
        result = evaluated(self.model, self.evaluate)
        if any(position.get(key) != self._stream.state_dict().get(key) for key in ("seed", "batch")):
            raise RuntimeError(
                "Trainer: evaluate iterated over train_loader, so that a resumed run would go on elsewhere; "
                "give it a loader of its own"
            )
        return result

    def _record(self, report: Report, result: dict[str, float]) -> None:
        record = {"step": self.step, "loss": self.loss, "lr": self.lr, "grad_norm": self.grad_norm}
        extra = {"tokens_per_second": self._meter.rate, "peak_memory": peak_memory(),
                 "bytes_kept": self._bytes_kept}  # fmt: skip
        record |= {name: value for name, value in extra.items() if value is not None}
        self.history.append(record | result)
        report.write(record | result)
        self._meter.reset()

    def _numbers(self) -> dict[str, str]:
        rate = self._meter.rate
        tokens = {} if rate is None else {"tokens/s": f"{rate:,.0f}"}
        return {"loss": f"{self.loss:.4g}", "lr": f"{self.lr:.3g}"} | tokens

    # --- checkpoints ----------------------------------------------------------------------------------------

    def _log_path(self, log: Path | None) -> str | None:
        if log is not None:
            return os.fspath(log)
        return None if self.checkpoints is None else self.checkpoints.log

    def _read(self, path: Path | None) -> tuple[Checkpoint, Any]:
        """The file given, or the newest one in the folder given or in our own; and what marks it."""
        own = self.checkpoints
        if path is not None and (own is None or os.path.realpath(path) != os.path.realpath(own.path)):
            return load_marked(os.fspath(path))
        if own is None:
            raise ValueError("Trainer: there is no checkpoint folder to resume from; give resume(path)")
        return own.read()

    @contextlib.contextmanager
    def _own_folder(self) -> Iterator[None]:
        """No other process writes checkpoints here inside the block, and those that are here are ours."""
        if self.checkpoints is None or not self.world.is_writer:
            yield
            return
        with self.checkpoints.writable() as new:
            if new:
                self.checkpoints.refuse_other(self._saved, self._saved_step, self._saved_mark)
            yield

    def _rest(self) -> dict[str, Any]:
        best = self.best.state_dict()
        return {"scheduler": self.scheduler, "loader": self._stream, "step": self.step,
                "generators": self.generators, "config": self.config,
                "extra": None if best is None else {"best": best}}  # fmt: skip

    def _prepare(self) -> None:
        """Find out before training what would go wrong after it."""
        if self.checkpoints is not None:
            check_checkpoint(self.model, self.optimizer, **self._rest())
        if not self.world.is_writer:
            return
        if self.checkpoints is not None:
            self.checkpoints.sweep()
            self.checkpoints.set_damaged_aside()
        if self.log is not None:
            prepare_log(self.log, self.step if self._trim_due else None)
        self._trim_due = False

    def _refuse_nonfinite(self) -> None:
        for name, p in self.model.named_parameters():
            if p.requires_grad and not np.isfinite(p.array).all():  # a frozen mask may hold −inf
                raise RuntimeError(
                    f"Trainer: {name} is not finite after step {self.step}, so no checkpoint was written; "
                    f"lower the learning rate, or set grad_clip"
                )

    def _farewell(self) -> str:
        return f"Trainer: stopped after step {self.step}; {self._kept()}"

    def _way_on(self) -> str:
        """How another run goes on where this one breaks off, by what is on the disk: all ranks may ask."""
        newest = None if self.checkpoints is None else self.checkpoints.newest()
        if newest is None:
            return "nothing is saved; start again"
        return f"{newest!r} is kept; alone or with any number of ranks, go on with resume()"

    def _kept(self) -> str:
        if self._saved is None:
            return "nothing is saved; fit() goes on in this process"
        return f"{self._saved!r} holds step {self._saved_step}; go on with resume()"
