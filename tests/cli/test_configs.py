"""The shipped configs are found wherever the command runs."""

import yaml

from reorder_lightning.cli.configs import configs_folder, find_configs


def test_shipped_config_is_found_in_any_folder():
    found = find_configs(["-c", "configs/reorder.yaml", "--config=configs/model/vit.yaml", "-x"])
    folder = configs_folder()
    assert found == ["-c", f"{folder}/reorder.yaml", f"--config={folder}/model/vit.yaml", "-x"]


def test_own_file_and_other_arguments_are_left_alone(tmp_path):
    own = tmp_path / "configs"
    own.mkdir()
    (own / "reorder.yaml").write_text("")
    arguments = ["-c", "configs/reorder.yaml", "-c", "configs/nothing.yaml", "configs/default.yaml"]
    assert find_configs(arguments) == arguments


def test_no_config_replaces_the_callbacks_of_another():
    for path in configs_folder().rglob("*.yaml"):
        trainer = yaml.safe_load(path.read_text()).get("trainer", {})
        assert "callbacks" not in trainer, path
