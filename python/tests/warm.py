"""Scripts in processes that need not import PyTorch: that takes a second and a half of a core.

`serve` has imported it, and forks. Whoever starts a script (a test, `slackline run`) starts
`run` in its place, a process that hands its arguments, folder, environment and output over,
ends as the script ends, passes SIGINT and SIGTERM on, and takes the script with it when it is
killed. The script's own process is that of os.getpid(), not the one that was started. For tests
that are not about the start of Python.

Usage: warm.py serve SOCKET        until its standard input ends
       warm.py run SOCKET SCRIPT [ARG...]
"""

import array
import json
import os
import signal
import socket
import sys

_MESSAGE_BYTES_MAX = 1 << 20


def run(path, arguments):
    """This process is a script's, for those who see it from outside."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        request = json.dumps({"argv": arguments, "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
        descriptors = array.array("i", [0, 1, 2])
        server.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: server.send(b"%d" % number))
        status = server.recv(16)
    code = os.waitstatus_to_exitcode(int(status)) if status else 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _script(argv, cwd, env):
    """The rest of this process is the script."""
    import as_script

    try:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        del sys.path[0]  # This file's folder.
        sys.path[0:0] = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
        as_script.become(argv)
    finally:
        os._exit(1)


def serve(path):
    """Forks until standard input ends. Kills what it has forked for somebody who is gone."""
    import selectors

    import as_script  # noqa: F401
    import torch  # noqa: F401

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    selector = selectors.DefaultSelector()
    for file in (listener, sys.stdin, ended):
        selector.register(file, selectors.EVENT_READ)
    asking = {}  # The process of each connection.

    def begin():
        client, _ = listener.accept()
        data, ancillary, _, _ = client.recvmsg(_MESSAGE_BYTES_MAX, socket.CMSG_SPACE(12))
        if not data:
            return client.close()
        request = json.loads(data)
        descriptors = array.array("i", ancillary[0][2])
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            os.closerange(3, max([*descriptors, client.fileno(), wake, ended]) + 64)
            _script(**request)
        for descriptor in descriptors:
            os.close(descriptor)
        asking[client] = pid
        selector.register(client, selectors.EVENT_READ)

    def hear(client):
        word = client.recv(16)
        if client in asking:
            os.kill(asking[client], int(word) if word else signal.SIGKILL)
        if not word:
            selector.unregister(client)

    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                begin()
            elif key.fileobj is sys.stdin:
                return
            elif key.fileobj == ended:
                os.read(ended, 4096)
            else:
                hear(key.fileobj)
        for client, pid in list(asking.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done == 0:
                continue
            del asking[client]
            try:
                client.send(b"%d" % status)
                selector.unregister(client)
            except (OSError, KeyError):
                pass  # It was killed.
            client.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        run(sys.argv[2], sys.argv[3:])
