import torch

from attnmix.benchmark.step_table import step_notes, step_table

ROW = {
    "model": "vit", "method": "smmix", "seconds": 1.23456, "ratio": 1.34049, "low": 1.33, "high": 1.3561,
    "images_per_second": 12.96, "floor": 1.3339, "memory_bytes": 2000, "memory_ratio": 1.0099, "note": None,
}  # fmt: skip
REFUSED = {**dict.fromkeys(ROW), "model": "vit", "method": "transmix", "note": "no class token"}


def test_the_table_shows_ratio_interval_floor_and_absolutes():
    head, body = step_table([ROW, REFUSED])
    assert head[:5] == ["model", "method", "ratio to CutMix", "95 % interval", "floor"]
    assert body[0] == ["vit", "smmix", "1.340", "1.330–1.356", "1.334", "1.23", "13", "1.010×"]
    assert body[1] == ["vit", "transmix", *["–"] * 6]


def test_notes_say_what_was_timed_and_why_rows_are_empty():
    cpu = step_notes([ROW, REFUSED], torch.device("cpu"))
    assert "tau=inf" in cpu[0]
    assert "keeps for the backward pass" in cpu[0]
    assert cpu[1:] == ["transmix on vit: no class token"]
    assert "allocated on the GPU" in step_notes([ROW], torch.device("cuda"))[0]
