"""Floating-point operations against counts by hand."""

import torch
from torch import nn

from reorder_lightning.kernels.selective_scan import selective_scan
from reorder_lightning.model_cost import forward_gflops


def test_products_and_convolutions():
    model = nn.Sequential(nn.Conv2d(3, 5, 2, stride=2), nn.Flatten(), nn.Linear(20, 7))
    by_hand = 2 * (4 * 5 * 3 * 4) + 2 * 20 * 7
    assert forward_gflops(model, torch.zeros(1, 3, 4, 4)) * 1e9 == by_hand


class Scan(nn.Module):
    def forward(self, x):
        u = x.flatten(2)
        batch, width, length = u.shape
        A, B = -torch.ones(width, 2), torch.ones(batch, 2, length)
        return selective_scan(u, u, A, B, B)


def test_selective_scan_counts_as_its_authors_count():
    assert forward_gflops(Scan(), torch.rand(1, 3, 4, 4)) * 1e9 == 9 * 3 * 16 * 2


def test_model_and_random_numbers_are_left_alone():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3)).train()
    model[0].eval()
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    forward_gflops(model, torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.rand(1), expected)
    assert [m.training for m in model.modules()] == [True, False, True]
    assert model[1].num_batches_tracked == 0
