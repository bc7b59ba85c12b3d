"""Rewards: where they are found, and when they must not be guessed."""

import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional as F

from reorder_lightning.callbacks.rewards import batch_rewards, capture_logits
from tests.toys import Classifier, sequence_vit


class Plain(LightningModule):
    pass


class WithMethod(LightningModule):
    def reorder_reward(self, outputs, batch):
        return batch[1].float()


def captured(batch, *inputs, net=None):
    """A model that was called on `inputs` while `batch` was trained on."""
    model = Classifier(net)
    capture = capture_logits(model, model.net)
    capture.start(batch)
    for x in inputs:
        model(x)
    return model, capture


X, Y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 1])


def test_the_sources_in_their_sequence():
    batch, outputs = (X, Y), {"loss": torch.tensor(1.0), "reorder_reward": torch.ones(4)}
    assert batch_rewards(outputs, batch, Plain()).tolist() == [1] * 4
    assert batch_rewards(outputs, batch, WithMethod()).tolist() == [0, 1, 2, 1]
    own = batch_rewards(outputs, batch, WithMethod(), lambda outputs, batch: 2.0 * batch[1])
    assert own.tolist() == [0, 2, 4, 2]


def test_rewards_have_no_graph_and_are_float32():
    rewards = torch.ones(3, dtype=torch.bfloat16, requires_grad=True) * 2
    found = batch_rewards({"reorder_reward": rewards}, None, Plain())
    assert found.dtype == torch.float32
    assert not found.requires_grad


@pytest.mark.parametrize("wrong", [torch.ones(()), torch.ones(2, 2), [1.0]])
def test_a_reward_is_one_number_per_image(wrong):
    with pytest.raises(ValueError, match=r"shape \(B,\), one per image"):
        batch_rewards({"reorder_reward": wrong}, None, Plain())


def test_no_reward_is_an_error_that_names_the_cures():
    with pytest.raises(ValueError, match=r"found no reward.*reorder_reward.*reward_fn"):
        batch_rewards({"loss": torch.tensor(1.0)}, (X, Y), Plain())


def test_a_skipped_batch_has_no_rewards():
    assert len(batch_rewards({}, (X, Y), Plain())) == 0


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("as_dict", [False, True])
def test_captured_logits_give_minus_the_cross_entropy(soft, as_dict):
    targets = torch.rand(4, 3).softmax(1) if soft else Y
    batch = {"image": X, "label": targets} if as_dict else [X, targets]
    model, capture = captured(batch, X)
    found = batch_rewards({"loss": torch.tensor(9.0)}, batch, model, capture=capture)
    expected = -F.cross_entropy(model.net(X), targets, reduction="none")
    torch.testing.assert_close(found, expected.detach())


def test_half_precision_logits_are_scored_in_float32():
    batch = (X.bfloat16(), Y)
    model, capture = captured(batch, batch[0], net=sequence_vit().bfloat16())
    found = batch_rewards({"loss": torch.tensor(1.0)}, batch, model, capture=capture)
    expected = -F.cross_entropy(capture.logits[0].float(), Y, reduction="none")
    assert torch.equal(found, expected)


def test_two_forwards_give_the_mean():
    batch = (X, Y)
    model, capture = captured(batch, X, X)
    once = captured(batch, X)
    assert len(capture.logits) == 2
    torch.testing.assert_close(
        batch_rewards({"loss": torch.tensor(1.0)}, batch, model, capture=capture),
        batch_rewards({"loss": torch.tensor(1.0)}, batch, once[0], capture=once[1]),
    )


def test_evaluation_is_not_captured():
    model, capture = captured((X, Y))
    model.eval()
    model(X)
    assert not capture.logits


def test_mixed_images_with_the_batchs_targets_are_an_error():
    """Case 36: https://github.com/Lightning-AI/pytorch-lightning/issues/790."""
    mixed = 0.5 * X + 0.5 * X.flip(0)
    model, capture = captured((X, Y), mixed)
    with torch.no_grad():
        logits = model.net(mixed)
        loss = 0.5 * F.cross_entropy(logits, Y) + 0.5 * F.cross_entropy(logits, Y.flip(0))
        loss = loss + 0.1  # an untrained model may not tell the two apart
    with pytest.raises(ValueError, match=r"mixes images .*reorder_reward"):
        batch_rewards({"loss": loss}, (X, Y), model, capture=capture)


def test_images_mixed_in_place_are_noticed():
    """Case 36: timm's Mixup writes into the batch."""
    x = X.clone()
    model, capture = captured((x, Y))
    x.mul_(0.5).add_(X.flip(0) * 0.5)
    model(x)
    with pytest.raises(ValueError, match="mixes images"):
        batch_rewards({"loss": torch.tensor(9.0)}, (x, Y), model, capture=capture)


def test_other_images_are_fine_if_the_loss_is_the_targets_cross_entropy():
    flipped = X.flip(3)
    model, capture = captured((X, Y), flipped)
    loss = F.cross_entropy(model.net(flipped), Y) / 4
    found = batch_rewards({"loss": loss}, (X, Y), model, capture=capture, accumulated=4)
    torch.testing.assert_close(-found.mean(), loss.detach() * 4)


def test_more_logits_than_targets_are_an_error():
    """Case 36: 2B images with B labels."""
    model, capture = captured((X, Y), torch.cat([X, X]))
    with pytest.raises(ValueError, match=r"logits of shape \(8, 3\) for targets of shape \(4,\)"):
        batch_rewards({"loss": torch.tensor(1.0)}, (X, Y), model, capture=capture)


@pytest.mark.parametrize("batch", [X, (X,), {"image": X}, (X, Y.float()), (X, [0, 1])])
def test_no_targets_are_an_error(batch):
    model, capture = captured(batch, X)
    with pytest.raises(ValueError, match="found no targets in the batch"):
        batch_rewards({"loss": torch.tensor(1.0)}, batch, model, capture=capture)


def test_a_model_without_a_classifier_is_not_watched():
    model = Classifier(nn.Linear(2, 2))
    assert capture_logits(model, model.net) is None


def test_hugging_faces_classifier_is_found():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(2, 2)
            self.classifier = nn.Linear(2, 3)

    model = Classifier(Net())
    capture = capture_logits(model, model.net.encoder)
    model.net.classifier(torch.zeros(4, 2))
    assert capture.logits[0].shape == (4, 3)
    capture.remove()
    model.net.classifier(torch.zeros(4, 2))
    assert len(capture.logits) == 1
