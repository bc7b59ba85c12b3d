"""`reorder export` writes the order that a checkpoint's model reads in."""

import torch

from reorder_lightning.orders import hilbert, load_order


def checkpoint(path, order, **more):
    state = {"backbone.patch_order._extra_state": order}
    torch.save({"state_dict": state, "epoch": 3, "global_step": 40, **more}, path)


def test_order_and_picture_lie_beside_the_checkpoint(reorder, tmp_path, capsys):
    arguments = {"image_size": [32, 48], "patch_size": 8}
    checkpoint(tmp_path / "last.ckpt", hilbert(4, 6), hyper_parameters=arguments)
    reorder("export last.ckpt")
    assert capsys.readouterr().out == "order: last.order.json\npicture: last.order.png\n"
    saved = load_order(tmp_path / "last.order.json")
    assert torch.equal(saved.order, hilbert(4, 6))
    assert saved.grid == (4, 6)
    assert saved.source == "last.ckpt, epoch 3, step 40"
    assert (tmp_path / "last.order.png").read_bytes().startswith(b"\x89PNG")


def test_grid_can_be_given(reorder, fails, tmp_path):
    checkpoint(tmp_path / "last.ckpt", hilbert(2, 3))
    assert "does not tell its patch grid" in fails(reorder, "export last.ckpt")
    reorder("export last.ckpt --grid 2x3 --output mine/learned.json")
    assert load_order(tmp_path / "mine" / "learned.json").grid == (2, 3)
    assert (tmp_path / "mine" / "learned.png").exists()


def test_bad_checkpoint_is_one_message(reorder, fails, tmp_path):
    assert "There is no checkpoint at no.ckpt" in fails(reorder, "export no.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "no.ckpt")
    assert "holds no order" in fails(reorder, "export no.ckpt")
