"""A block that a loop runs several times is refused; what only looks like it is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from reorder_lightning import PatchOrder, REOrder
from tests.toys import Classifier, ScanBlock, loader, trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class Albert(nn.Module):
    """One block, `rounds` times."""

    def __init__(self, rounds, recompute=False, own=False):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 2, 2)
        self.blocks = nn.ModuleList([ScanBlock(8)])
        self.classifier = nn.Linear(8, 3)
        self.rounds, self.recompute = rounds, recompute
        self.order = PatchOrder(None, (4, 4)) if own else nn.Identity()

    def forward(self, x):
        x = self.order(self.patches(x).flatten(2).transpose(1, 2))
        for _ in range(self.rounds):
            if self.recompute:
                x = checkpoint(self.blocks[0], x, use_reentrant=False)
            else:
                x = self.blocks[0](x)
        return self.classifier(x[:, -1])


def fit(root, model, **where):
    callback = REOrder(warmup=1, policy=1, **where)
    trainer(root, callback, max_epochs=3).fit(model, loader())
    assert callback.policy.updates == 4


WHERE = {"target": "net.blocks.0", "grid_size": (4, 4)}


@pytest.mark.parametrize("rounds", [2, 3])
def test_loop_is_refused(tmp_path, rounds):
    with pytest.raises(ValueError, match=rf"'net.blocks.0' runs {rounds} times.*PatchOrder into"):
        fit(tmp_path, Classifier(Albert(rounds)), **WHERE)


def test_cure_of_the_message_works(tmp_path):
    fit(tmp_path, Classifier(Albert(3, own=True)))


@pytest.mark.parametrize("recompute", [False, True])
def test_one_round_is_fine(tmp_path, recompute):
    model = Classifier(Albert(1, recompute))
    fit(tmp_path, model, **WHERE)
    assert len(model.net.blocks[0]._forward_pre_hooks) == 1, "only the order's own"


def test_two_forwards_in_a_step_are_fine(tmp_path):
    class Twice(Classifier):
        def training_step(self, batch, batch_idx):
            return sum(F.cross_entropy(self(batch[0]), batch[1]) for _ in range(2))

    fit(tmp_path, Twice(Albert(1)), **WHERE)


def test_hooks_are_gone_after_an_error(tmp_path):
    class Fails(Classifier):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("out of memory")

    model = Fails(Albert(1))
    with pytest.raises(RuntimeError, match="memory"):
        fit(tmp_path, model, **WHERE)
    assert len(model.net.blocks[0]._forward_pre_hooks) == 1
    assert not model.net._forward_pre_hooks


def test_compiled_model_is_left_alone(tmp_path):
    model = Classifier(Albert(1))
    model.net.compile(backend="eager")
    fit(tmp_path, model, **WHERE)
    assert torch.isfinite(model.losses[-1])
