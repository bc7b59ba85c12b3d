"""`reorder orders` and what it draws."""

from reorder_lightning.orders import ORDERS, save_order, spiral


def test_list_has_every_order(reorder, capsys):
    reorder("orders --grid 6x4")
    shown = capsys.readouterr().out
    assert "orders of 6x4 patches" in shown
    assert all(name in shown for name in ORDERS)


def test_draw_all_and_one(reorder, tmp_path, capsys):
    reorder("orders --draw all.png")
    reorder("orders --order random:7 --grid 4x5")
    save_order(tmp_path / "mine.json", spiral(3, 3), (3, 3), "a test")
    reorder("orders --order mine.json --grid 3x3 --draw mine.png")
    assert capsys.readouterr().out.splitlines() == [
        "drawn into all.png",
        "drawn into order_random_7.png",
        "drawn into mine.png",
    ]
    for name in ("all", "order_random_7", "mine"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_bad_input_is_one_message(reorder, fails):
    assert "`grid` to be ROWSxCOLUMNS" in fails(reorder, "orders --grid 14")
    assert "at least 1x1 patches" in fails(reorder, "orders --grid 0x3")
    assert "but got 'zigzag'" in fails(reorder, "orders --order zigzag")
