"""What the workers of emitted scripts share: steps, interruptions, and work in parallel."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Callable

from lib.script.errors import paint, print_messages

stopping = threading.Event()  # set by a signal: long work in threads ends early
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Steps:
    """The steps of a worker, from FIRST/COUNT on; a signal reports the current one and ends it."""

    def __init__(self, first: str, resume: str) -> None:
        number, self.count = first.split("/")
        self.next, self.current, self.resume = int(number), "before the first step", resume
        for each in _SIGNALS:
            signal.signal(each, self._stop)

    def __call__(self, text: str) -> None:
        """Print the next step."""
        number = f"{self.next}/{self.count}"
        self.next, self.current = self.next + 1, f"in step {number}, {text}"
        print(paint(f"[{number}] {text}", sys.stderr), file=sys.stderr, flush=True)

    def _stop(self, *_: object) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        stopping.set()
        hint = f"no work is lost; resume with: {self.resume}"
        # another stream: the signal may have come while this thread wrote to the old one
        sys.stderr = os.fdopen(2, "w", closefd=False)
        print(file=sys.stderr, flush=True)
        print_messages(error=f"interrupted {self.current}", hint=hint)
        sys.exit(130)


def in_parallel(
    function: Callable[[Any], Any], items: Iterable[Any], threads: int, unit: str
) -> list[Future[Any]]:
    """Call a function with each item in threads; return the results of the calls, in order.

    A terminal shows meanwhile how many items are done. An interruption starts no more calls.
    """
    started, erase = time.monotonic(), "\r\033[K" if sys.stderr.isatty() else ""
    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(function, each) for each in items]
        try:
            while wait(calls, 0.2 if erase else None).not_done:
                done, seconds = sum(each.done() for each in calls), time.monotonic() - started
                text = f"{erase}      {done} of {len(calls)} {unit}, {seconds:.0f} s"
                print(text, end="", file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print(erase, end="", file=sys.stderr, flush=True)
    return calls
