"""Write the results directory of a run: NeMo's configuration, and the files of its launcher.

    python compose.py CONF_DIR [OVERRIDE...]

CONF_DIR is the launcher's directory ``conf``; the overrides are those of its ``main.py``. All names
come from the composed configuration, as in the launcher. Prints the path of NeMo's configuration.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

# Functions that the launcher's files use.
RESOLVERS = {
    "multiply": lambda x, y: x * y,
    "divide_ceil": lambda x, y: math.ceil(x / y),
    "divide_floor": lambda x, y: math.floor(x / y),
}


def compose_launcher(conf_dir: str, overrides: list[str]) -> DictConfig:
    """Compose the launcher's configuration and resolve its stage ``training``.

    Raises
    ------
    HydraException, OmegaConfBaseException
        If an override names an unknown key, or a reference cannot be resolved.
    """
    for name, function in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
    with initialize_config_dir(os.path.abspath(conf_dir), version_base="1.2"):
        config = compose("config", overrides)
    OmegaConf.resolve(config.training)
    return config


def write_configuration(training: DictConfig) -> Path:
    """Write the training's configuration to its results directory.

    Each node writes the same file and renames it, so that no node reads an incomplete one.
    """
    file = Path(training.run.results_dir).absolute() / f"{training.run.name}_hydra.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.uname().nodename}.{os.getpid()}")
    OmegaConf.save(training, partial)
    partial.replace(file)
    return file


def keep_record(results_dir: Path, job_name: str) -> None:
    """Write the other files that the launcher's users expect: command line, job ID, script, log."""
    (results_dir / "launcher_cmd.log").write_text(shlex.join(sys.argv) + "\n", encoding="utf-8")
    job, run = os.environ.get("SLURM_JOB_ID"), Path(os.environ.get("RUN_DIR", "/nowhere"))
    if not job:
        return
    (results_dir / "launcher.log").write_text(f"Submitted batch job {job}\n", encoding="utf-8")
    if (run / "job.sbatch").is_file():
        shutil.copyfile(run / "job.sbatch", results_dir / f"{job_name}_submission.sh")
        log = results_dir / f"log-{job_name}_{job}.out"
        log.unlink(missing_ok=True)
        log.symlink_to(f"{run}.log")


def main() -> None:
    """Compose and write the configuration; report errors in two lines."""
    conf_dir, *overrides = sys.argv[1:]
    try:
        config = compose_launcher(conf_dir, overrides)
        job_name = config.cluster.job_name_prefix + config.training.run.name
        file = write_configuration(config.training)
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        sys.exit(
            f"error: cannot compose the configuration: {reason}\n"
            f"hint: check the overrides against {conf_dir}/training"
        )
    if os.environ.get("RANK", os.environ.get("SLURM_NODEID", "0")) == "0":
        keep_record(file.parent, job_name)
    print(file)


if __name__ == "__main__":
    main()
