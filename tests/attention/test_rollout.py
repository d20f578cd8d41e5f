import pytest
import torch
import torch.nn.functional as F

from attnmix.attention.call import SoftmaxCall
from attnmix.attention.rollout import first_row_rollout, mean_over_blocks


def calls_of(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [SoftmaxCall(torch.randn(2, 3, *shape, generator=generator).softmax(-1)) for shape in shapes]


def product(matrices):
    """The last block's matrix leftmost."""
    result = matrices[0]
    for matrix in matrices[1:]:
        result = matrix @ result
    return result


def close(result, expected):
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0)


def test_self_attention_is_the_plain_product():
    calls = calls_of((5, 5), (5, 5), (5, 5))
    close(first_row_rollout(calls, 1), product([call.softmax.mean(1) for call in calls])[:, 0])


def test_one_block():
    calls = calls_of((5, 5))
    close(first_row_rollout(calls, 1), calls[0].softmax.mean(1)[:, 0])


def test_spatially_reduced_keys_end_at_the_first_blocks_keys():
    calls = calls_of((6, 4), (6, 6))
    close(first_row_rollout(calls, 0), product([call.softmax.mean(1) for call in calls])[:, 0])


def test_class_blocks_leave_other_tokens_alone():
    calls = calls_of((4, 4), (4, 4), (1, 5), (1, 5))
    full = []
    for call in calls:
        matrix = call.softmax.mean(1)
        whole = torch.eye(5).repeat(2, 1, 1)
        if matrix.shape[1] == 1:
            whole[:, :1] = matrix
        else:
            whole[:, 1:, 1:] = matrix
        full.append(whole)
    close(first_row_rollout(calls, 1), product(full)[:, 0, 1:])


def test_pool_without_prefix_tokens():
    calls = calls_of((6, 6), (6, 6), (1, 4))
    matrices = [call.softmax.mean(1) for call in calls[:2]] + [F.pad(calls[2].softmax.mean(1), (2, 0))]
    close(first_row_rollout(calls, 2), product(matrices)[:, 0])


def test_other_tokens_raise():
    with pytest.raises(ValueError, match="class_rollout needs the same tokens in every block, got 16 then 4"):
        first_row_rollout(calls_of((16, 16), (4, 4)), 1)
    with pytest.raises(ValueError, match="image_rollout needs the same tokens in every block"):
        mean_over_blocks([torch.ones(2, 16), torch.ones(2, 4)])


def test_mean_over_blocks():
    close(mean_over_blocks([torch.zeros(2, 4), torch.ones(2, 4)]), torch.full((2, 4), 0.5))
