"""Serve the time at a port of a job's first node, for doctor.py --job.

    clock_server.py PORT CLIENTS SECONDS

It runs on the host: a node that cannot connect has a broken network or name, and a node that
differs has a wrong clock. It ends after CLIENTS connections or SECONDS. If the port is in use, it
prints by which process.
"""

import glob
import os
import socket
import sys
import threading
import time


def listener_at(port):
    """Name the process that listens at a port, if this user is allowed to see it."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(table):
            with open(table) as file:
                for line in file.readlines()[1:]:
                    words = line.split()
                    if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                        inodes.add("socket:[" + words[9] + "]")
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(link) in inodes:
                pid = link.split("/")[2]
                with open("/proc/" + pid + "/cmdline", "rb") as file:
                    command = file.read().replace(b"\0", b" ").decode(errors="replace")
                return "process " + pid + ", " + " ".join(command.split())[:60]
        except OSError:  # it has ended, or is another user's
            continue
    return "a process of another user"


def send_time(connection, gone):
    """Send the time, in nanoseconds, for each line received."""
    with connection, connection.makefile("rw") as stream:
        try:
            for _ in stream:
                stream.write(str(int(time.time() * 1e9)) + "\n")
                stream.flush()
        except OSError:
            pass
    gone.release()


def main():
    """Listen until all clients have disconnected."""
    port, clients, seconds = (int(each) for each in sys.argv[1:])
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("", port))
    except OSError:
        print(listener_at(port))
        return
    server.listen(1024)
    gone = threading.Semaphore(0)

    def accept():
        while True:
            connection, _ = server.accept()
            threading.Thread(target=send_time, args=(connection, gone), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    deadline = time.monotonic() + seconds
    for _ in range(clients):
        gone.acquire(timeout=max(deadline - time.monotonic(), 0))


main()
