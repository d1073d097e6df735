"""Write the configuration that NeMo trains with, fully resolved, as its launcher does.

    python compose.py CONF_DIR FILE [OVERRIDE...]

Overrides are those of the launcher's main.py: ``training.model.micro_batch_size=2``.
"""

from __future__ import annotations

import math
import os
import sys

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

# What the launcher's files compute with.
RESOLVERS = {
    "multiply": lambda x, y: x * y,
    "divide_ceil": lambda x, y: math.ceil(x / y),
    "divide_floor": lambda x, y: x // y,
}


def write_configuration(conf_dir: str, file: str, overrides: list[str]) -> None:
    """Compose the launcher's stage ``training`` and write it without any reference left.

    Parameters
    ----------
    conf_dir : str
        The launcher's folder conf.
    file : str
        What is written. All ranks write the same, each in one step, so none reads half of it.
    overrides : list of str
        In Hydra's grammar; later ones win.

    Raises
    ------
    HydraException, OmegaConfBaseException
        If an override names what is not there, or a reference leads nowhere.
    """
    for name, function in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
    with initialize_config_dir(os.path.abspath(conf_dir), version_base="1.2"):
        whole = compose("config", overrides)
    OmegaConf.resolve(whole.training)
    partial = f"{file}.{os.uname().nodename}.{os.getpid()}"
    OmegaConf.save(whole.training, partial)
    os.replace(partial, file)


def main() -> None:
    """Tell errors in two lines."""
    conf_dir, file, *overrides = sys.argv[1:]
    try:
        write_configuration(conf_dir, file, overrides)
    except (HydraException, OmegaConfBaseException) as error:
        why = " ".join(str(error).split())
        sys.exit(f"error: the model's configuration: {why}\nhint: its keys are in {conf_dir}/training")


if __name__ == "__main__":
    main()
