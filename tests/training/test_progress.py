import io

import torch
from rich.console import Console
from torchmetrics.classification import MulticlassAccuracy

from attnmix.training.progress import epoch_line, progress_bar

ENTRY = {"epoch": 3, "train_loss": 1.23456, "train_top1": 50.0, "images_per_second": 999.9}


def test_a_terminal_shows_loss_accuracy_speed_and_time_left():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=140)
    accuracy = MulticlassAccuracy(3, average="micro")
    accuracy.update(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 2, 1]))
    with progress_bar(console, total=10, done=2) as bar:
        bar(3, 4, loss=torch.tensor(1.25), accuracy=accuracy, speed=512.3)
    text = screen.getvalue()
    for part in ("epoch 3", "6/10", "loss 1.250", "acc 75.0 %", "512 images/s", ":"):
        assert part in text


def test_no_terminal_no_bar():
    screen = io.StringIO()
    with progress_bar(Console(file=screen), total=10, done=0) as bar:
        bar(1, 4, loss=torch.tensor(1.0), accuracy=None, speed=1.0)
    assert screen.getvalue() == ""


def test_epoch_line():
    assert epoch_line(ENTRY, 30) == "epoch  3/30  loss 1.235  train 50.0 %  1000 images/s"
    line = epoch_line({**ENTRY, "eval_top1": 40.0, "ema_top1": 41.0}, 300)
    assert line == "epoch   3/300  loss 1.235  train 50.0 %  eval 40.0 %  ema 41.0 %  1000 images/s"
