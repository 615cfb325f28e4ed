"""Hydra with OmegaConf: structured configs in its store, a YAML file, config groups for unions."""

import os
import sys
from typing import Any

import hydra
import tree_omegaconf as tree
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

store = ConfigStore.instance()
store.store(name="base", node=tree.Tree)
for _path, _variants in tree.UNIONS.items():
    for _tag, _cls in _variants.items():
        store.store(group=_path.replace(".", "/"), name=_tag, node=_cls)

SHOW: list[Any] = [lambda config: print("read")]


def main() -> int:
    """Load, print the help, or complete as the shell's script asks."""
    file, *words = sys.argv[1:]
    folder, name = os.path.split(os.path.abspath(file))
    if words[:1] == ["--complete"]:
        line = f"start {words[1]}"
        os.environ.update(COMP_LINE=line, COMP_POINT=str(len(line)))
        words = ["-sc", "query=bash"]
    quiet = ["hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=none"]
    quiet.append("hydra/hydra_logging=none")
    sys.argv = ["start", *words, *([] if words[:1] in (["--help"], ["-sc"]) else quiet)]

    @hydra.main(version_base="1.3", config_path=folder, config_name=name.removesuffix(".yaml"))
    def run(config: Any) -> None:
        SHOW[0](config)

    run()
    return 0


def plain(config: Any) -> dict[str, Any]:
    """Nested plain data."""
    data = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(data, dict)
    return data
