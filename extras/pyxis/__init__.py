"""The Slurm plugin Pyxis and CSCS' container engine, with which srun starts enroot's images."""
