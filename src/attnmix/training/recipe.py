"""The recipe: everything that decides what a training run does, as one typed dataclass.

A recipe is a YAML file. jsonargparse reads it into `Recipe` (`reading.py`) and makes the command line from the
same fields (`arguments.py`), so a key has one name, one type and one help text everywhere: the string below it.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Augment", "Loader", "Optimizer", "Recipe", "Schedule"]


@dataclass
class Optimizer:
    """How the weights move."""

    opt: str = "adamw"
    """Optimizer, by timm's name: adamw, sgd, lamb, lion, ... Biases, norms and what the model itself
    names (positions, class token) get no weight decay."""
    weight_decay: float = 0.05
    """Weight decay."""
    momentum: float = 0.9
    """Momentum, for optimizers that have one (sgd, lars, ...); adamw has betas instead."""
    betas: tuple[float, float] | None = None
    """Adam's two decay rates, as [0.9, 0.999]; null leaves the optimizer's own."""
    eps: float | None = None
    """Adam's epsilon; null leaves the optimizer's own."""
    layer_decay: float | None = None
    """Learning rate factor from each layer to the one below, for fine-tuning (0.75); null is off."""

    def __post_init__(self) -> None:
        _require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "0 or more")
        _require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "in [0, 1)")
        if self.betas is not None:
            _require(all(0 <= b < 1 for b in self.betas), "optimizer.betas", self.betas, "two in [0, 1)")
        if self.eps is not None:
            _require(self.eps > 0, "optimizer.eps", self.eps, "above 0")
        if self.layer_decay is not None:
            _require(0 < self.layer_decay <= 1, "optimizer.layer_decay", self.layer_decay, "in (0, 1]")


@dataclass
class Schedule:
    """How the learning rate goes, update by update."""

    sched: Literal["cosine", "constant"] = "cosine"
    """After warm-up: cosine down to min_lr at the last epoch, or constant."""
    warmup_epochs: int = 5
    """Epochs in which the learning rate climbs in a straight line from warmup_lr towards lr. As in timm
    the cosine runs over all epochs from the first, and the warm-up covers its beginning: it ends on a
    rate a little below lr."""
    warmup_lr: float = 1e-6
    """Learning rate of the very first update."""
    min_lr: float = 1e-5
    """Learning rate at the end of the cosine, and in the cool-down."""
    cooldown_epochs: int = 0
    """The run's last epochs, spent at min_lr: the cosine ends so many epochs before `epochs`, which counts
    them. "1500 epochs and 10 of cool-down" is epochs 1510 with 10 here."""

    def __post_init__(self) -> None:
        _require(self.warmup_epochs >= 0, "schedule.warmup_epochs", self.warmup_epochs, "0 or more")
        _require(self.warmup_lr >= 0, "schedule.warmup_lr", self.warmup_lr, "0 or more")
        _require(self.min_lr >= 0, "schedule.min_lr", self.min_lr, "0 or more")
        cooldown = self.cooldown_epochs
        _require(cooldown >= 0, "schedule.cooldown_epochs", cooldown, "0 or more")
        right = cooldown == 0 or self.sched == "cosine"
        _require(
            right, "schedule.cooldown_epochs", cooldown, f"0 with the schedule {self.sched}, which ends nowhere"
        )


@dataclass
class Augment:
    """What is done to each training image before it is mixed: timm's transforms, by timm's names."""

    no_aug: bool = False
    """Resize only: the keys below but interpolation and crop_pct are then without effect."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Random crop: smallest and largest share of the image's area."""
    ratio: tuple[float, float] = (0.75, 1.3333333)
    """Random crop: narrowest and widest side ratio."""
    hflip: float | None = None
    """Probability of a left-right flip; null: 0.5, but 0 for embedded data (a mirrored digit is none)."""
    vflip: float = 0.0
    """Probability of an upside-down flip."""
    color_jitter: float = 0.4
    """Strength of random brightness, contrast and saturation; 0 is off. Not used with auto_augment."""
    auto_augment: str | None = None
    """timm's name of a policy: rand-m9-mstd0.5-inc1 (RandAugment), augmix-m3-w3, ...; null is off."""
    re_prob: float = 0.0
    """Probability of random erasing."""
    re_mode: Literal["const", "rand", "pixel"] = "pixel"
    """What erases: black, one random colour, or random pixels."""
    interpolation: Literal["bicubic", "bilinear", "nearest", "random"] = "bicubic"
    """How images are resized, in training and in evaluation (random: bicubic in evaluation)."""
    crop_pct: float | None = None
    """Evaluation: share of the resized image's side that the centre crop keeps; 1.0 is no crop; null:
    0.875, but 1.0 for embedded data and for models with a side below 128 pixels."""

    def __post_init__(self) -> None:
        low, high = self.scale
        _require(0 < low <= high <= 1, "augment.scale", self.scale, "[low, high] with 0 < low <= high <= 1")
        low, high = self.ratio
        _require(0 < low <= high, "augment.ratio", self.ratio, "[low, high] with 0 < low <= high")
        for name in ("hflip", "vflip", "re_prob"):
            value = getattr(self, name)
            _require(value is None or 0 <= value <= 1, f"augment.{name}", value, "a probability in [0, 1]")
        _require(self.color_jitter >= 0, "augment.color_jitter", self.color_jitter, "0 or more")
        right_crop = self.crop_pct is None or 0 < self.crop_pct <= 1
        _require(right_crop, "augment.crop_pct", self.crop_pct, "in (0, 1], or null")


@dataclass
class Loader:
    """How images reach the model; changes speed, never results, but for the order of a stream."""

    workers: int = 0
    """Processes that read and augment images; 0 does it in the training process (right for digits)."""
    pin: bool = True
    """Page-locked host memory: faster copies to a GPU, no effect without one."""

    def __post_init__(self) -> None:
        _require(self.workers >= 0, "loader.workers", self.workers, "0 or more")


@dataclass
class Recipe:
    """A training run.

    Raises:
        ValueError: if a value is out of range; the message names the key, the value and what is right.
    """

    model: str = "vit_tiny_patch16_224"
    """timm model name; see `attnmix list models`."""
    model_options: dict[str, Any] = field(default_factory=dict)
    """Keywords of timm.create_model: img_size, patch_size, drop_path_rate, pretrained, ..."""
    init: str | None = None
    """Initial weights, a .safetensors file of the whole model (OUT/model/model.safetensors of another
    run, say); null: fresh weights, decided by the seed alone."""
    data: str = "digits-in-scenes"
    """Data set: an embedded one, a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or timm's prefixed
    names (hfds/..., wds/..., torch/...); see `attnmix list data`."""
    data_options: dict[str, Any] = field(default_factory=dict)
    """Options of the data set."""
    train_split: str = "train"
    """Split to train on."""
    eval_split: str = "validation"
    """Split to evaluate on."""
    label_maps: str | None = None
    """Folder of label maps of the training split, made by `attnmix maps`: what a teacher sees in every place of
    each image, cropped and flipped as the image is; for methods that take labels from a teacher. null: none."""
    method: str = "cutmix"
    """Mixing method; see `attnmix list methods`."""
    method_options: dict[str, Any] = field(default_factory=dict)
    """Options of the method: smoothing, mixup_prob, prob, ... Where an overlay or the command line names
    another method, the recipe's options go with the recipe's method; likewise data_options with data."""
    epochs: int = 300
    """Passes over the training images, the cool-down's included."""
    aug_repeats: int = 1
    """Repeated augmentation: views of an image in one epoch, each augmented on its own (DeiT: 3). An epoch
    keeps its length: with 3 it shows a third of the images three times, to different processes in turn."""
    batch_size: int = 128
    """Images per step and process."""
    lr: float = 5e-4
    """Peak learning rate, as it is: never scaled by batch size or number of processes. After a warm-up the
    cosine has already left it (see schedule.warmup_epochs)."""
    seed: int = 0
    """Decides initial weights, data order, augmentation and the method's draws. The first three do not
    depend on the method."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision: no is float32 throughout; fp16 needs a GPU."""
    compile: bool = False
    """torch.compile the model."""
    grad_checkpointing: bool = False
    """Compute activations again in the backward pass: much less memory, a third more time."""
    fsdp: Literal["no", "shard_grad_op", "full_shard"] = "no"
    """Several processes: no keeps all in each (DDP); shard_grad_op parts gradients and optimizer state between
    them, full_shard the weights too, which are then gathered block by block, twice a step (FSDP2)."""
    accumulation_steps: int = 1
    """Steps whose gradients are averaged into one update."""
    clip_grad: float | None = None
    """Largest gradient norm; null is no clipping."""
    ema: float | None = None
    """Decay of a moving average of the weights (0.9999), which is then evaluated beside the plain
    weights and exported; null is off."""
    threads: int | None = None
    """Torch's CPU threads; null leaves them."""
    eval_every: int = 1
    """Evaluate after every so many epochs, and after the last."""
    checkpoint_every: int = 1
    """Write the checkpoint after every so many epochs, and after the last."""
    checkpoint_minutes: float | None = 10.0
    """In long epochs also after so many minutes; null: between epochs alone. The last two are kept."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """What a NaN or infinite loss does: stop ends the run; skip leaves that update out, up to 10 on end, and waits
    for the device at every update. The batch that did it is kept in OUT. (With fp16 the gradients' scaler leaves
    such updates out by itself and counts none.)"""
    trackers: list[str] = field(default_factory=lambda: ["tensorboard"])
    """Where the curves go besides metrics.jsonl: tensorboard, wandb, mlflow, each by name; [] is none."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """How the weights move."""
    schedule: Schedule = field(default_factory=Schedule)
    """How the learning rate goes."""
    augment: Augment = field(default_factory=Augment)
    """What is done to each training image before it is mixed."""
    loader: Loader = field(default_factory=Loader)
    """How images reach the model."""

    def __post_init__(self) -> None:
        counts = ("epochs", "aug_repeats", "batch_size", "accumulation_steps", "eval_every", "checkpoint_every")
        for name in counts:
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        cooldown = self.schedule.cooldown_epochs
        below = f"below epochs, which is {self.epochs} and counts them"
        _require(cooldown < self.epochs, "schedule.cooldown_epochs", cooldown, below)
        right_repeats = self.aug_repeats == 1 or not self.augment.no_aug
        _require(right_repeats, "aug_repeats", self.aug_repeats, "1 with augment.no_aug: the views would be equal")
        _require(self.lr > 0 and math.isfinite(self.lr), "lr", self.lr, "above 0")
        _require(0 <= self.seed < 2**32, "seed", self.seed, "0 to 2**32 - 1")
        kind, _, index = self.device.partition(":")
        right_device = kind == "cuda" and index.isdecimal() if index else self.device in _DEVICES
        _require(right_device, "device", self.device, "auto, cpu, cuda, cuda:0, cuda:1, ... or mps")
        right_fsdp = self.fsdp == "no" or (self.precision != "fp16" and not self.compile)
        _require(right_fsdp, "fsdp", self.fsdp, "no with precision fp16 or compile")
        if self.clip_grad is not None:
            _require(self.clip_grad > 0, "clip_grad", self.clip_grad, "above 0, or null for no clipping")
        minutes = self.checkpoint_minutes
        _require(minutes is None or minutes >= 0, "checkpoint_minutes", minutes, "0 or more, or null")
        if self.ema is not None:
            _require(0 < self.ema < 1, "ema", self.ema, "in (0, 1), or null for none")
        if self.threads is not None:
            _require(self.threads >= 1, "threads", self.threads, "1 or more, or null")


_DEVICES = ("auto", "cpu", "cuda", "mps")


def _require(right: bool, name: str, value: object, what: str) -> None:
    if not right:  # NaN compares false, hence lands here too
        raise ValueError(f"{name} is {value!r}, but must be {what}")
