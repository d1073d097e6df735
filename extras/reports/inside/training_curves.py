"""What a training has written and what was measured on its nodes, as points of charts."""

import json
import os
import re
import shutil
from pathlib import Path
from statistics import fmean, median
from tempfile import NamedTemporaryFile

from lib.script.records import open_file, read_file

NOT_MEASURED = "not measured"
MARGIN = 30  # seconds by which the clocks of nodes can differ
LARGEST = 1e30  # number in a chart; the means of larger ones overflow
SAMPLE = (("time", max), ("utilisation", fmean), ("power", sum), ("memory", max))  # of a node
SAMPLED = {"device", *(name for name, _ in SAMPLE)}  # columns


def number(value):
    """Return a number that can be drawn, or None."""
    try:
        value = float(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return value if abs(value) < LARGEST else None


class Training:
    """The jobs that have written the same metrics, and the points of their charts."""

    def __init__(self, data, install):
        self.data = data
        self.gaps = [tuple(each) for each in data["gaps"]]
        self.curves = {"loss": {}, "validation_loss": {}, "speed": {}}  # by step: (time, value)
        self.nodes = {}  # by node: the values of SAMPLE
        self.has_gpus = False
        self.owner = os.geteuid() if data["owner"] is None else data["owner"]
        for file in map(Path, data["files"]):
            try:
                self.read_metrics(file)
            except ImportError:
                hint = f"add tensorboard to the requirements, then run: {install}"
                self.gaps.append((f"not read, as the environment has no tensorboard: {file}", hint))
            except (OSError, ValueError) as error:
                self.gaps.append((f"cannot read {file}: {error}", f"look at the file: {file}"))
        for file in map(Path, data["samples"]):
            try:
                self.read_samples(file)
            except OSError as error:
                self.gaps.append((f"cannot read {file}: {error}", f"look at the file: {file}"))
        self.complete_speed()
        self.segments = self.find_segments()

    def read_metrics(self, file):
        """Read JSON Lines, or events of TensorBoard."""
        if ".tfevents." in file.name:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

            # of what was opened: a name can lead elsewhere a moment later
            with (
                open_file(file, owner=self.owner) as stream,
                NamedTemporaryFile(suffix=".tfevents.copy") as copy,
            ):
                shutil.copyfileobj(stream, copy)
                copy.flush()
                events = EventAccumulator(copy.name, size_guidance={"scalars": 0}).Reload()
            for tag in events.Tags()["scalars"]:
                for each in events.Scalars(tag):
                    self.add({"step": each.step, "time": each.wall_time, tag: each.value})
        else:
            self.read_lines(file)

    def read_lines(self, file):
        """Read JSON Lines; a job that was killed can leave an incomplete last one."""
        text = read_file(file, 1 << 28, owner=self.owner).decode(errors="replace")
        *lines, rest = text.split("\n")
        damaged = 0
        for line in filter(None, lines):
            try:
                self.add(json.loads(line))
            except (AttributeError, RecursionError, ValueError):
                damaged += 1
        if damaged:
            hint = f"look for lines that are not JSON: {file}"
            self.gaps.append((f"cannot read {damaged} lines of {file}: left out", hint))
        if rest:
            hint = "nothing to do: the job was writing it, or was killed then"
            self.gaps.append((f"the last line of {file} is incomplete: left out", hint))

    def add(self, line):
        """Add the values of a step; those of a later start replace earlier ones."""
        step, time = number(line.get("step")), number(line.get("time"))
        for name, points in self.curves.items():
            value = number(line.get(self.data["metrics"].get(name)))
            if step is not None and value is not None:
                points[step] = (time, value)

    def complete_speed(self):
        """Take steps per second if the metrics have no tokens per second."""
        points = self.curves["speed"]
        self.unit = "tokens/s" if points else "steps/s"
        if not points:
            timed = [
                (step, time) for step, (time, _) in sorted(self.curves["loss"].items()) if time
            ]
            for (first, before), (step, time) in zip(timed, timed[1:]):
                if time > before:
                    points[step] = (time, (step - first) / (time - before))

    def read_samples(self, file):
        """Read the samples of a node, each of which begins with its first device."""
        node, sample = self.nodes.setdefault(file.stem, []), {}
        text = read_file(file, owner=self.owner).decode(errors="replace")
        names, *rows = (x.split(",") for x in text.split("\n"))
        for cells in rows:
            row = dict(zip(names, cells))
            is_whole = len(cells) == len(names) and row.keys() >= SAMPLED
            if not is_whole or not re.fullmatch("[0-9]{1,10}", row["time"]):
                continue
            if row["device"] in sample:
                self.add_sample(node, sample)
                sample = {}
            sample[row["device"]] = row
        self.add_sample(node, sample)
        if not node:
            self.gaps.append((f"no sample found in {file}", "its node is not measured"))

    def add_sample(self, node, sample):
        """Add the values of all devices of a node; without GPUs those of its processes."""
        gpus = [each for device, each in sample.items() if device != "cpu"]
        self.has_gpus = self.has_gpus or bool(gpus)
        columns = [[number(each[name]) for each in gpus or sample.values()] for name, _ in SAMPLE]
        columns = [[each for each in column if each is not None] for column in columns]
        if columns[0]:
            node.append([of(each) if each else None for (_, of), each in zip(SAMPLE, columns)])

    def find_segments(self):
        """Return start and end of each attempt of a job; no record has those before a requeue."""
        times = [time for points in self.curves.values() for time, _ in points.values() if time]
        times = sorted([*times, *(each[0] for node in self.nodes.values() for each in node)])
        jobs = [each for each in self.data["jobs"] if each["started"]]
        jobs = [
            [each["started"], each["ended"] or max(each["started"], *times, 0)] for each in jobs
        ]
        attempts = []
        for time in times:
            if any(start - MARGIN <= time <= end + MARGIN for start, end in jobs):
                continue
            last = attempts[-1] if attempts else None
            if last and not any(last[1] < start < time for start, _ in jobs):
                last[1] = time
            else:
                attempts.append([time, time])
        restarts = sorted(each for job in self.data["jobs"] for each in job["restarts"])
        segments = []
        for start, end in sorted(jobs + attempts):
            times = [start, *(each for each in restarts if start < each < end), end]
            segments += zip(times, times[1:])
        return segments

    def clock(self, time):
        """Return the seconds that the jobs have run until then, without the time between them."""
        passed = 0
        for start, end in self.segments:
            if time > start:
                passed += min(time, end) - start
        return passed

    def restarts(self, axis):
        """Return where the charts mark the start of each job but the first."""
        starts = [start for start, _ in self.segments[1:]]
        if axis == "time":
            return [self.clock(start) for start in starts]
        points = [(time, step) for step, (time, _) in self.curves["loss"].items() if time]
        later = [[step for time, step in points if time >= start] for start in starts]
        return [min(steps) for steps in later if steps]

    def lines(self, name, axis):
        """Return the lines of a chart, each a list of points."""
        if name in self.curves:
            lines = {}  # one for each job over time, which its start interrupts
            for step, (time, value) in sorted(self.curves[name].items()):
                if axis == "step":
                    lines.setdefault(0, []).append((step, value))
                elif time:
                    job = sum(start <= time for start, _ in self.segments)
                    lines.setdefault(job, []).append((self.clock(time), value))
            return list(lines.values())
        column = [each for each, _ in SAMPLE].index(name)
        scale = {"memory": 1 / 1024, "utilisation": 1 if self.has_gpus else 0.01}.get(name, 1)
        found = [
            [
                (self.clock(each[0]), each[column] * scale)
                for each in samples
                if each[column] is not None
            ]
            for samples in self.nodes.values()
        ]
        return [points for points in found if points]

    def figures(self):
        """Return heading and value of what the training has reached and used."""
        loss, validation, speed = (
            [value for _, (_, value) in sorted(points.items())] for points in self.curves.values()
        )
        typical = median(speed) if speed else 0
        return [
            ("loss", f"{fmean(loss[-20:]):.3f}" if loss else NOT_MEASURED),
            *([("validation loss", f"{validation[-1]:.3f}")] if validation else []),
            ("steps", f"{max(self.curves['loss']):,.0f}" if loss else NOT_MEASURED),
            (self.unit, f"{typical:,.{0 if typical >= 100 else 2}f}" if speed else NOT_MEASURED),
            *map(tuple, self.data["figures"]),
        ]
