"""Trainer: the training loop with everything around it: a run can be watched, stopped and gone on with.

A run that was stopped, by Ctrl-C or by the power going off, and resumed from its checkpoint ends with the
same bits as one that was not: weights, optimiser, schedule, order of the data and dropout masks.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from microtensor.mode import no_grad
from microtensor.nn import Module
from microtensor.nn.utils import clip_grad_norm_
from microtensor.tensor import Tensor
from microtensor.train.allocator import peak_memory
from microtensor.train.checkpoint import check_checkpoint, load_checkpoint, save_checkpoint
from microtensor.train.folder import CheckpointFolder, mark_of
from microtensor.train.generators import Generators
from microtensor.train.interrupt import Interrupt
from microtensor.train.report import Meter, Report, trim_log
from microtensor.train.serialize import Path
from microtensor.train.stream import BatchStream

__all__ = ["Trainer"]

OWN_NAMES = frozenset(("step", "loss", "lr", "grad_norm", "tokens_per_second", "peak_memory"))  # of a record


class Trainer:
    """Trains a model for max_steps optimiser steps: `fit()` starts, `resume()` goes on from a checkpoint.

    loss_fn(model, batch) returns the loss, or (loss, n_tokens) to have tokens per second reported. The
    gradient of a step is that of the mean loss of `accumulate` batches, scaled to a norm of at most
    `grad_clip`, over what the optimiser steps. evaluate(model) returns a number or a dict of numbers; it is
    called every `eval_every` steps with the model in eval mode and nothing recorded. A name that a record has
    itself gets "eval_" in front: "loss" of evaluate is logged as "eval_loss". Each of `callbacks` is called
    with the trainer after every step; it may read `step`, `loss`, `lr`, `history` and call `stop()`.

    checkpoint: a folder, of which the newest `keep` checkpoints are kept, or a name ending in .safetensors;
    written every `checkpoint_every` steps, at the end and after Ctrl-C. A folder belongs to one run: `fit`
    and `load` refuse one that holds another, and one that another process trains in (a lock file names it).
    generators: what the data or the model draws from beside the default generator and the loader's. config:
    stored with it. log: the file of one JSON line per `log_every` steps; if not given, log.jsonl in the
    checkpoint folder, or NAME.jsonl beside NAME.safetensors.

    Ctrl-C lets the step in progress finish, writes a checkpoint and raises KeyboardInterrupt, which says how
    to go on; a second Ctrl-C stops at once, and the last checkpoint stays.

    Raises: ValueError for impossible numbers; RuntimeError naming the step when the loss is not finite.
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
                  "checkpoint_every": checkpoint_every, "log_every": log_every}  # fmt: skip
        _check(counts, grad_clip, eval_every, evaluate)
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.train_loader, self.loss_fn, self.max_steps = train_loader, loss_fn, max_steps
        self.grad_clip, self.accumulate = grad_clip, accumulate
        self.eval_every, self.evaluate = eval_every, evaluate
        self.checkpoints = None if checkpoint is None else CheckpointFolder(checkpoint, keep)
        self.checkpoint_every, self.callbacks, self.progress = checkpoint_every, tuple(callbacks), progress
        self.log, self.log_every = self._log_path(log), log_every
        self.generators, self.config = dict(generators or {}), config
        self.step = 0  # optimiser steps taken
        self.loss = self.lr = math.nan  # of the last step
        self.grad_norm: float | None = None  # of the last step, before clipping; None without grad_clip
        self.history: list[dict[str, Any]] = []  # the records of this process, as in the log
        self._stream, self._meter = BatchStream(train_loader, self.generators), Meter()
        self._saved: str | None = None  # the last checkpoint written or loaded, and its step
        self._saved_step = -1
        self._saved_mark: Any = None  # tells that file from another one of its name
        self._trim_due = False  # the log may have lines beyond the step that was loaded
        self._stopping = False

    # --- what a user calls ----------------------------------------------------------------------------------

    def fit(self) -> list[dict[str, Any]]:
        """Train up to max_steps and return the log records of this process.

        After stop() or Ctrl-C another fit() goes on in the same process. What checkpoints shall hold is
        looked at first, so that nothing is trained that could not be saved.
        Raises: RuntimeError if the loss is not finite, and while another process trains in the folder;
        ValueError if an earlier run's checkpoints are in the way; TypeError naming what cannot be saved;
        KeyboardInterrupt after Ctrl-C.
        """
        if self.step >= self.max_steps:
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
                with Report(self.max_steps, self.step, log=self.log, progress=self.progress) as report:
                    while self.step < self.max_steps and not (self._stopping or interrupt.requested):
                        self._train_step()
                        self._after_step(report)
                if self.checkpoints is not None and self._saved_step != self.step:
                    self.save()
            except KeyboardInterrupt:
                raise KeyboardInterrupt(self._farewell()) from None
        if interrupt.requested:
            raise KeyboardInterrupt(self._farewell())

    def resume(self, path: Path | None = None) -> list[dict[str, Any]]:
        """`load(path)`, then `fit()`."""
        self.load(path)
        return self.fit()

    def load(self, path: Path | None = None) -> None:
        """Put everything into the state of a checkpoint, by default the newest; nothing is trained.

        path: a file, or a folder, whose newest checkpoint is taken.
        Raises: FileNotFoundError without a checkpoint; ValueError naming what does not fit, and if our own
        folder holds another run than the one loaded, nothing being changed.
        """
        found = self._newest(path)
        mark = mark_of(found)
        checkpoint = load_checkpoint(found)
        if self.checkpoints is not None:
            self.checkpoints.refuse_other(found, checkpoint.step, mark)
        if checkpoint.scheduler is not None and self.scheduler is None:
            raise ValueError(
                f"Trainer: {found!r} has a {checkpoint.scheduler['class']}; give the scheduler, too"
            )
        checkpoint.restore(self.model, self.optimizer, scheduler=self.scheduler, loader=self._stream,
                           generators=self.generators)  # fmt: skip
        self.step = self._saved_step = checkpoint.step
        self._saved, self._saved_mark = found, mark
        self.history = [record for record in self.history if record["step"] <= self.step]
        self._trim_due = True  # in fit: whoever only looks at a checkpoint changes no file

    def save(self) -> str:
        """Write a checkpoint of the present step and return its path.

        Raises: RuntimeError without a checkpoint folder, and for weights that are not finite.
        """
        if self.checkpoints is None:
            raise RuntimeError("Trainer: there is no place for checkpoints; give Trainer(checkpoint=folder)")
        self._refuse_nonfinite()
        with self._own_folder():
            path = self.checkpoints.path_at(self.step)
            save_checkpoint(path, self.model, self.optimizer, **self._rest())
            self._saved, self._saved_step, self._saved_mark = path, self.step, mark_of(path)
            self.checkpoints.prune(path)
        return path

    def stop(self) -> None:
        """End `fit` after the step in progress, as if max_steps were reached: for callbacks."""
        self._stopping = True

    # --- one step -------------------------------------------------------------------------------------------

    def _train_step(self) -> None:
        start = time.perf_counter()
        self.model.zero_grad()  # also what the optimiser does not step: its gradients would add up
        self.optimizer.zero_grad(set_to_none=True)
        total, tokens = 0.0, 0
        for _ in range(self.accumulate):
            value, n = self._backward(next(self._stream))
            total += value
            tokens += n
        if self.grad_clip is not None:
            stepped = [p for group in self.optimizer.param_groups for p in group["params"]]
            self.grad_norm = clip_grad_norm_(stepped, self.grad_clip).item()
            self._refuse_infinite("gradient's norm", self.grad_norm)
        self.lr = float(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.step += 1
        self.loss = total / self.accumulate
        self._meter.add(tokens, time.perf_counter() - start)

    def _backward(self, batch: Any) -> tuple[float, int]:
        loss, n = self.loss_fn(self.model, batch), 0
        if isinstance(loss, tuple):
            loss, n = loss
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise TypeError(
                f"Trainer: loss_fn returned {_said(loss)}; return a recorded tensor of one element, "
                f"or (loss, number of tokens)"
            )
        value = float(loss.item())
        self._refuse_infinite("loss", value)  # before it spoils the weights
        (loss if self.accumulate == 1 else loss * (1.0 / self.accumulate)).backward()
        return value, int(n)

    def _refuse_infinite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise RuntimeError(
                f"Trainer: the {what} is {value} at step {self.step + 1}, with weights as they were; "
                f"lower the learning rate, set grad_clip, or find the first bad value with "
                f"mt.autograd.set_detect_anomaly(True)"
            )

    def _after_step(self, report: Report) -> None:
        report.advance(self._numbers)
        due = self.eval_every is not None and self.step % self.eval_every == 0
        result = self._evaluate() if due else {}
        if due or self.step % self.log_every == 0 or self.step == self.max_steps:
            self._record(report, result)
        for callback in self.callbacks:
            callback(self)
        if self.checkpoints is not None and self.checkpoint_every and self.step % self.checkpoint_every == 0:
            self.save()

    def _evaluate(self) -> dict[str, float]:
        assert self.evaluate is not None
        position = self._stream.state_dict()
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            with no_grad():
                result = self.evaluate(self.model)
        finally:
            for module, training in modes:
                module.training = training
        if any(position.get(key) != self._stream.state_dict().get(key) for key in ("seed", "batch")):
            raise RuntimeError(
                "Trainer: evaluate iterated over train_loader, so that a resumed run would go on elsewhere; "
                "give it a loader of its own"
            )
        named = result if isinstance(result, Mapping) else {"evaluation": result}
        for name, value in named.items():
            if not hasattr(value, "__float__") or (isinstance(value, Tensor) and value.numel() != 1):
                raise TypeError(
                    f"Trainer: evaluate returned {_said(value)} for {name!r}; return a number, or a dict of "
                    f"numbers by name"
                )
        clear = {f"eval_{name}" if name in OWN_NAMES else name: value for name, value in named.items()}
        if len(clear) < len(named):
            raise ValueError(
                f"Trainer: two of evaluate's {sorted(named)} would have one name in the log; rename one"
            )
        return {name: float(value) for name, value in clear.items()}

    def _record(self, report: Report, result: dict[str, float]) -> None:
        record = {"step": self.step, "loss": self.loss, "lr": self.lr}
        extra = {"grad_norm": self.grad_norm, "tokens_per_second": self._meter.rate,
                 "peak_memory": peak_memory()}  # fmt: skip
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

    def _newest(self, path: Path | None) -> str:
        """The file to load: the path given, or the newest one in the folder given or in our own."""
        if path is not None and not os.path.isdir(path):
            return os.fspath(path)
        folder = self.checkpoints if path is None else CheckpointFolder(path, None)
        if folder is None:
            raise ValueError("Trainer: there is no checkpoint folder to resume from; give resume(path)")
        newest = folder.newest()
        if newest is None:
            raise FileNotFoundError(f"Trainer: there is no checkpoint in {folder.path!r}; start with fit()")
        return newest

    @contextlib.contextmanager
    def _own_folder(self) -> Iterator[None]:
        """No other process writes checkpoints here inside the block, and those that are here are ours."""
        if self.checkpoints is None or self.checkpoints.lock.held:
            yield
            return
        self.checkpoints.prepare()
        with self.checkpoints.lock:
            self.checkpoints.refuse_other(self._saved, self._saved_step, self._saved_mark)
            yield

    def _rest(self) -> dict[str, Any]:
        return {"scheduler": self.scheduler, "loader": self._stream, "step": self.step,
                "generators": self.generators, "config": self.config}  # fmt: skip

    def _prepare(self) -> None:
        """Find out before training what would go wrong after it."""
        if self.checkpoints is not None:
            check_checkpoint(self.model, self.optimizer, **self._rest())
            self.checkpoints.sweep()
        if self.log is not None:
            os.makedirs(os.path.dirname(self.log) or ".", exist_ok=True)
            if self._trim_due:
                trim_log(self.log, self.step)
        self._trim_due = False

    def _refuse_nonfinite(self) -> None:
        for name, p in self.model.named_parameters():
            if p.requires_grad and not np.isfinite(p.array).all():  # a frozen mask may hold −inf
                raise RuntimeError(
                    f"Trainer: {name} is not finite after step {self.step}, so no checkpoint was written; "
                    f"lower the learning rate, or set grad_clip"
                )

    def _farewell(self) -> str:
        done = f"Trainer: stopped after step {self.step}"
        if self._saved is None:
            return f"{done}, and nothing is saved; fit() goes on in this process"
        return f"{done}; {self._saved!r} holds step {self._saved_step}; go on with resume()"


def _said(value: Any) -> str:
    """What was returned, in words: a tensor by its shape."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {value.shape}{'' if value.requires_grad else ' that needs no gradient'}"
    return f"{type(value).__name__} {value!r:.80}"


def _check(counts: dict[str, int | None], grad_clip: Any, eval_every: Any, evaluate: Any) -> None:
    for name, value in counts.items():
        if value is None and name in ("eval_every", "keep", "checkpoint_every"):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"Trainer: {name} is {value!r}; give an integer of 1 or more")
    if grad_clip is not None and not grad_clip > 0:
        raise ValueError(f"Trainer: grad_clip is {grad_clip}; make it more than 0, or None for no clipping")
    if (eval_every is None) != (evaluate is None):
        raise ValueError("Trainer: eval_every and evaluate need each other; give both or neither")
