"""Training: the loop with progress bar, log and checkpoints, and files that hold tensors but never code."""

from microtensor.annotations import hold
from microtensor.train.allocator import peak_memory, tune_allocator
from microtensor.train.checkpoint import Checkpoint, save_checkpoint
from microtensor.train.folder import load_checkpoint
from microtensor.train.interrupt import Stopped
from microtensor.train.parallel import World, world
from microtensor.train.plot import plot_history
from microtensor.train.serialize import load, save
from microtensor.train.trainer import Trainer

__all__ = ["Checkpoint", "Stopped", "Trainer", "World", "load", "load_checkpoint", "peak_memory"]
__all__ += ["plot_history", "save", "save_checkpoint", "tune_allocator", "world"]

hold(__name__, "tune_allocator")
