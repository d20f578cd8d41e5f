"""How training steps are measured, checked before anything heavy is built."""

from dataclasses import dataclass

import torch

from attnmix.benchmark.device import chosen_device
from attnmix.benchmark.rounds import LEAST_ROUNDS

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class StepSettings:
    """How training steps are measured.

    Attributes:
        batch_size: images of a step.
        image_size: height, width in pixels; None: what the model was made for.
        rounds: how often each step is timed.
        warmup: rounds before that, not counted.
        threads: of torch on the CPU.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        dtype: float32, or a type for autocast.
        compile: `torch.compile` the model.
        channels_last: that memory format for model and images.
        seed: of weights, images, draws and the order within a round.

    Raises:
        ValueError: a value outside its range, naming it.
    """

    batch_size: int = 16
    image_size: tuple[int, int] | None = None
    rounds: int = 30
    warmup: int = 2
    threads: int = 1
    device: str = "auto"
    dtype: str = "float32"
    compile: bool = False
    channels_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"batch_size": 2, "rounds": LEAST_ROUNDS, "warmup": 0, "threads": 1, "seed": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be {smallest} or more")
        if self.compile and self.warmup < 1:
            raise ValueError("warmup is 0, but the first round of compiled steps compiles: make it 1 or more")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}, but must be one of {', '.join(DTYPES)}")
        if self.image_size is not None and min(self.image_size) < 1:
            raise ValueError(f"image_size is {self.image_size}, but must be height and width in pixels")
        chosen_device(self.device)

    @property
    def torch_device(self) -> torch.device:
        """The device, `auto` decided."""
        return chosen_device(self.device)

    @property
    def autocast(self) -> torch.dtype | None:
        """What the forward is cast to, if anything."""
        return DTYPES[self.dtype]

    @property
    def stem(self) -> str:
        """The result files' name without ending."""
        marks = ("-compile" if self.compile else "") + ("-channels-last" if self.channels_last else "")
        return f"step-{self.torch_device.type}-{self.dtype}{marks}"
