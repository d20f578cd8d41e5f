import pytest
import torch

from attnmix.benchmark.step_settings import StepSettings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 1}, "batch_size is 1, but must be 2 or more"),
        ({"rounds": 2}, "rounds is 2, but must be 3 or more"),
        ({"warmup": -1}, "warmup is -1, but must be 0 or more"),
        ({"warmup": 0, "compile": True}, "warmup is 0, but the first round of compiled steps compiles"),
        ({"threads": 0}, "threads is 0, but must be 1 or more"),
        ({"seed": -1}, "seed is -1, but must be 0 or more"),
        ({"dtype": "int8"}, "dtype is 'int8', but must be one of float32, bfloat16, float16"),
        ({"image_size": (0, 3)}, r"image_size is \(0, 3\)"),
        ({"device": "tpu"}, "device is 'tpu', but must be auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:99"}, "device is 'cuda:99', but torch sees"),
    ],
)
def test_wrong_values_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        StepSettings(**values)


def test_dtype_says_what_the_forward_is_cast_to():
    assert [StepSettings(dtype=name).autocast for name in ("float32", "bfloat16", "float16")] == [
        None, torch.bfloat16, torch.float16,
    ]  # fmt: skip


def test_the_files_name_says_device_type_and_compilation():
    assert StepSettings(device="cpu").stem == "step-cpu-float32"
    assert StepSettings(device="cpu", dtype="bfloat16", compile=True).stem == "step-cpu-bfloat16-compile"
    assert StepSettings(device="cpu", channels_last=True).stem == "step-cpu-float32-channels-last"
    assert StepSettings(device="auto").torch_device.type in ("cpu", "cuda")
