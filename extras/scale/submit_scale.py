"""The verb `submit.py scale`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator

import click

from extras.scale.study import Study, study_file
from lib.commands import Invocation
from lib.commands.submit import JobCommand, read_job, submission_options
from lib.commands.verbs import WithVerbs
from lib.jobs.job_files import JobFile
from lib.jobs.options import Option
from lib.jobs.request import Asked, Request
from lib.jobs.size import gpus_of_a_node
from lib.jobs.submit import request_of, submit_lines, total_cost
from lib.runtimes.environment import Environment
from lib.script.command import call
from lib.script.errors import LongshipError
from lib.script.render import render

# How a training without settings takes steps, directory and sequences of a step.
_ARGUMENTS = {"pytorch": ("--steps={}", "--run-name={}", "--batch-size={}")}
_BATCHES = ("global_batch", "global_batch_size")


class _Scale(WithVerbs, JobCommand):
    """The command of `submit.py scale`."""


def _counts(context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    counts = text.split(",")
    if not all(each.isdecimal() and int(each) for each in counts):
        raise click.BadParameter(f'not numbers of nodes: "{text}"')
    found = tuple(sorted({*map(int, counts)}))
    if len(found) < 2:
        raise LongshipError(
            f"a study needs at least two numbers of nodes, got {text}", "such as: --nodes 1,2,4"
        )
    return found


@click.command(cls=_Scale, context_settings={"ignore_unknown_options": True})
@click.argument("job", metavar="SITE/run_training_MACHINE.sbatch")
@click.option("--nodes", required=True, callback=_counts, metavar="N,N...", help="Nodes of a job.")
@click.option(
    "--trials", type=click.IntRange(1, 20), default=1, help="Jobs for each of them (default: 1)."
)
@click.option(
    "--steps", type=click.IntRange(10), default=50, help="Steps of each job (default: 50)."
)
@click.option(
    "--batch", type=click.IntRange(0), default=0, metavar="N", help="Sequences of a step."
)
@click.option("--weak", is_flag=True, help="Let the sequences of a step grow with the nodes.")
@click.option("--name", default="", help="Name of the study; its jobs begin with it.")
@submission_options
def scale(
    invocation: Invocation,
    job: str,
    typed: list[Option],
    arguments: tuple[str, ...],
    asked: Asked,
    name: str,
    batch: int,
    **asked_of: int,
) -> None:
    """Train for a few steps on several numbers of nodes, to measure how the training scales.

    All jobs have the same code, data, seed and arguments, and a directory of their own for the
    results. The sequences of a step are the same on all nodes, by default those of the settings;
    with --weak they are those of the fewest nodes. All jobs are priced, and tested by Slurm, before
    the first one is submitted. Follow with `submit.py scale report NAME`.
    """
    invocation, read = read_job(invocation, job)
    settings, env = invocation.settings, invocation.environment("job")
    given = env.training.values
    study = Study(
        name or time.strftime(f"scale-{settings.stack.name}-%m%d-%H%M%S"),
        *(str(read.path), settings.machine.name, settings.stack.name),
        batch=batch or next((int(given[each]) for each in _BATCHES if given.get(each)), 0),
        arguments=arguments,
        **asked_of,  # type: ignore[arg-type]
    )
    _check(study, read, asked)
    _check_own(study, typed)
    jobs = list(_requests(study, env, read, typed, asked))
    first, *more = [each._replace(cost=each.cost._replace(words="")) for each in jobs]
    file = study_file(invocation.paths, study.name)
    first = first._replace(
        code=(*first.code, call("scale_begin", file, json.dumps(study._asdict()))),
        sent=(call("next_step", f"python3 submit.py scale report {study.name}"),),
        then=tuple(more),
        cost=first.cost._replace(words=_words(study, jobs)),
    )
    script = render(invocation.title(f"submit.py scale {job}"), submit_lines(first))
    invocation.finish(script, "submit.py", note=total_cost(first).words)


for _each in scale.params:
    if isinstance(_each, click.Option) and _each.name in ("chain", "after"):
        _each.hidden = True  # of all submissions, and refused here


def _check(study: Study, read: JobFile, asked: Asked) -> None:
    """Stop at what a study cannot measure."""
    if read.script != "run_training.sh":
        raise LongshipError(
            f"{read.path} starts no training of a stack",
            "name the site's job script: python3 submit.py scale SITE/run_training_MACHINE.sbatch",
        )
    if asked.chain > 1 or asked.after:
        raise LongshipError(
            "--chain and --after cannot be used in a study", "leave them out: its jobs are short"
        )
    if not study.batch:
        raise LongshipError(
            "the sequences of a step are not set, and must be the same for a comparison",
            "add --batch N, a multiple of the ranks on all nodes",
        )
    for nodes in study.nodes:
        if study.weak and study.batch * nodes % study.nodes[0]:
            raise LongshipError(
                f"{study.batch} sequences on {study.nodes[0]} nodes are none in whole on {nodes}",
                f"choose a --batch that is a multiple of {study.nodes[0]}",
            )


def _check_own(study: Study, typed: list[Option]) -> None:
    """Stop at an option, or an argument of the training, that the study sets itself."""
    own = {"nodes": "--nodes N,N...", "job-name": "--name NAME"}
    found = [(each.word, own[each.name]) for each in typed if each.name in own]
    names = [each.partition("=")[0] for each in _arguments(study.stack)]
    instead = dict(zip(names, ("--steps N", "--name NAME", "--batch N")))
    for each in study.arguments:
        begun = each.partition("=")[0]  # argparse completes it
        found += [
            (each, instead[name]) for name in names if begun > "--" and name.startswith(begun)
        ]
    if found:
        raise LongshipError(
            f"{found[0][0]} cannot be used in a study, which sets it for each job",
            f"leave it out, and write before --: {found[0][1]}",
        )


def _check_batch(study: Study, request: Request) -> None:
    """Stop if the ranks of a job, in groups that share a model, cannot divide its sequences."""
    size, machine = request.size, request.env.machine
    on_node = size.gpus // size.nodes or gpus_of_a_node(machine, size.partition) or 1
    training = request.env.training
    sizes = [
        training.values[name]
        for name, setting in training.settings.items()
        if setting.kind == "parallel" and not setting.within
    ]
    if 0 in sizes:  # the program chooses it
        return
    parallel = math.prod(sizes)
    batch, replicas = study.batch_on(size.nodes), max(size.nodes * on_node // parallel, 1)
    if batch % replicas:
        multiple = max(math.lcm(*study.nodes) * on_node // parallel, 1)
        raise LongshipError(
            f"{batch} sequences on {size.nodes} node{'s' * (size.nodes > 1)} cannot be divided "
            f"among {replicas} ranks",
            f"choose a --batch that is a multiple of {multiple}",
        )


def _requests(
    study: Study, env: Environment, read: JobFile, typed: list[Option], asked: Asked
) -> Iterator[Request]:
    """Yield the jobs; each but the first has a prefix for its variables."""
    for nodes in study.nodes:
        for trial in range(1, study.trials + 1):
            label = study.label(nodes, trial)
            if (env.paths.checkpoint_dir / label).exists():  # its jobs would go on from there
                raise LongshipError(
                    f"there are results of another study: {env.paths.checkpoint_dir / label}",
                    "choose another name: --name=NAME",
                )
            values = study.steps, label, study.batch_on(nodes)
            options = [*typed, Option("nodes", str(nodes)), Option("job-name", label)]
            own = _with_settings(env, values)
            words = [each.format(value) for each, value in zip(_arguments(study.stack), values)]
            found = request_of(own, read, options, (*study.arguments, *words), asked)
            if found.then or "array" in found.options:
                raise LongshipError(
                    "--then and --array cannot be used in a study", "leave them out"
                )
            if found.trained_on != found.size:
                raise LongshipError("a study cannot keep spare nodes", "add: --spare-nodes=0")
            _check_batch(study, found)
            if (nodes, trial) != (study.nodes[0], 1):
                found = found._replace(
                    job=found.job._replace(needs_image=False),  # that of the first is checked
                    prefix=f"n{nodes}_t{trial}_",
                    send="scale_send",
                )
            yield found


def _arguments(stack: str) -> tuple[str, ...]:
    return _ARGUMENTS.get(stack, ())


def _with_settings(env: Environment, values: tuple[int, str, int]) -> Environment:
    """Return the environment with the values in its [training], if the stack has settings."""
    settings, known = env.settings, env.settings.stack.settings
    if _arguments(settings.stack.name):
        return env
    names = ["steps", "run_name", *(each for each in _BATCHES if each in known)]
    if not (len(names) == 3 and {*names} <= {*known}):
        raise LongshipError(
            f"the stack {settings.stack.name} has no settings for steps, directory and sequences",
            "choose another stack: docs/how-to/scaling_study.md",
        )
    training = {**settings.configuration.training, **dict(zip(names, values))}
    configuration = settings.configuration._replace(training=training)
    return env._replace(settings=settings._replace(configuration=configuration))


def _words(study: Study, jobs: list[Request]) -> str:
    """Describe the jobs of a study in one line."""
    counts = ", ".join(map(str, study.nodes))
    words = f"{study.name}: {len(jobs)} jobs on {counts} nodes, {study.steps} steps each"
    unknown = next((each.cost.words for each in jobs if each.cost.is_unclear), "")
    return f"{words}; {unknown}" if unknown else words
