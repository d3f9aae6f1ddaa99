"""Between `slackline run --on ray` and the nodes of a Ray cluster.

`serve NAME` reads from stdin what is asked for: a JSON line, and more of them later,
which ask for other nodes in place of lost ones, or whether the cluster is gone.
It gets one placement group, with a bundle for each host of the job, has an actor in
each bundle, and says on stdout where they are: JSON lines, too. It ends with its
stdin. Actors and placement group are gone then, however it ends: Ray ends what a
driver leaves.

`reach NAME HOST COMMAND...` runs a command beside the actor on a host. Its stdin,
stdout, stderr and exit code are those of this program. The bytes go over a socket in
the abstract namespace, which takes connections of the same user alone, and then by
Ray's own connections: no port is opened.

Needs nothing but Ray, and `reach` not even that. The text is a part of slackline.
"""

import collections
import json
import os
import queue
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

# Frames from `serve` to `reach`: channel, bytes, data.
HEADER = struct.Struct(">BI")
STDOUT, STDERR, EXIT = 1, 2, 3
# Ray sends up to 100 KB along with a call; more would go by its object store.
PART_BYTES = 64 << 10
CONNECT_SECONDS = 60
ACTOR_START_SECONDS = 60
# As long as a host may stay away that is reached by ssh.
NODE_RETURN_SECONDS = 300
# A host is tried again and again; so long may one try wait for Ray.
ONE_TRY_SECONDS = 10
SLICE_SECONDS = 0.5
SAY_FIRST_SECONDS = 5
SAY_AGAIN_SECONDS = 60
NO_AGENT = 255


class SlacklineAgent:
    """The actor: starts commands on its node, and carries their streams."""

    def __init__(self):
        self.running = {}

    def address(self):
        import ray

        return ray.util.get_node_ip_address()

    def start(self, number, command):
        """The exit code and what to say if it cannot be started, else None."""
        environment = dict(os.environ)
        # Ray's is for this actor; the processes have threads as their config says.
        environment.pop("OMP_NUM_THREADS", None)
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            return (127 if error.errno == 2 else 126), f"{command[0]}: {error.strerror}"
        parts = queue.Queue(maxsize=64)
        self.running[number] = (process, parts)
        readers = [
            threading.Thread(
                target=self._read, args=(number, stream, channel, parts), daemon=True
            )
            for stream, channel in ((process.stdout, STDOUT), (process.stderr, STDERR))
        ]
        for reader in readers:
            reader.start()
        threading.Thread(target=self._wait, args=(process, readers, parts), daemon=True).start()
        return None

    def _read(self, number, stream, channel, parts):
        with stream:
            while data := stream.read(PART_BYTES):
                while number in self.running:
                    try:
                        parts.put((channel, data), timeout=1)
                        break
                    except queue.Full:
                        pass
                else:
                    return  # Nobody reads it any more.

    @staticmethod
    def _wait(process, readers, parts):
        for reader in readers:
            reader.join()
        code = process.wait()
        parts.put((EXIT, struct.pack(">i", code if code >= 0 else 128 - code)))

    def drop(self, number):
        """Whoever has started the command is gone."""
        self.write(number, b"")
        process, parts = self.running.pop(number)
        # An agent ends its processes and itself when its stdin ends.
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
        while not parts.empty():
            parts.get()

    def write(self, number, data):
        """Empty: no more comes."""
        process, _ = self.running[number]
        try:
            if data:
                view = memoryview(data)
                while view:
                    view = view[process.stdin.write(view) :]
            else:
                process.stdin.close()
        except (OSError, ValueError):
            pass  # It has ended, which read() says.

    def read(self, number):
        """The next part; None: none has come for a while."""
        _, parts = self.running[number]
        try:
            part = parts.get(timeout=5)
        except queue.Empty:
            return None
        if part[0] == EXIT:
            del self.running[number]
        return part


def fail(text):
    raise SystemExit(text)


def one_line(error):
    return " ".join(str(error).split())


class Bridge:
    def __init__(self, name, say, request):
        self.name = name
        self.say = say
        self.request = request
        self.closed = threading.Event()  # Nobody waits for an answer any more.
        self.lock = threading.Lock()
        self.actors = []  # One for each bundle.
        self.addresses = []  # Of the nodes that the job has.
        self.numbers = 0

    # What Ray has.

    def nodes(self):
        return [node for node in self.ray.nodes() if node["Alive"]]

    def describe(self, resources):
        names = {"CPU": "CPUs", "GPU": "GPUs"}
        words = []
        for name, amount in resources.items():
            if name.startswith("node:"):
                continue
            words.append(f"{amount:g} {names.get(name, name)}")
        return ", ".join(words) or "nothing"

    def asked_text(self):
        bundle = self.request["bundles"][0]
        count = len(self.request["bundles"])
        return f"{count} {'node' if count == 1 else 'nodes'} with {self.describe(bundle)}" + (
            " each" if count > 1 else ""
        )

    def nodes_text(self):
        kinds = self.request["bundles"][0].keys()
        counts = collections.Counter()
        for node in self.nodes():
            has = {name: node["Resources"].get(name, 0) for name in kinds if name[:5] != "node:"}
            counts[self.describe(has)] += 1
        return "; ".join(f"{count} with {text}" for text, count in sorted(counts.items()))

    def too_small(self):
        """Why no node that Ray has now could ever be enough; empty: they are enough."""
        nodes = self.nodes()
        known = sorted({node["NodeManagerAddress"] for node in nodes})
        fit = 0
        for node in nodes:
            bundle = self.request["bundles"][0]
            fit += all(
                node["Resources"].get(name, 0) >= amount
                for name, amount in bundle.items()
                if not name.startswith("node:")
            )
        for bundle in self.request["bundles"]:
            for name in bundle:
                if name.startswith("node:") and name[5:] not in known:
                    return f"host {name[5:]} is no node of this cluster; its nodes are {', '.join(known)}"
        if fit < len(self.request["bundles"]):
            return (
                f"the job asks for {self.asked_text()}, and the nodes of this cluster are: "
                f"{self.nodes_text()}; ask for other nodes by --nodes, for fewer servers, workers "
                "or threads, or let a cluster that grows begin them by launch { ray { autoscaled: true } }"
            )
        return ""

    # Getting nodes.

    def connect(self):
        version = ".".join(str(part) for part in sys.version_info[:3])
        try:
            import ray
            from ray.util import placement_group, scheduling_strategies
        except ImportError as error:
            fail(
                f"{sys.executable} (Python {version}) has no Ray ({one_line(error)}): "
                f"{sys.executable} -m pip install 'ray>=2.40', or name a Python that has it by "
                "launch { ray { python: ... } }"
            )
        self.ray = ray
        self.new_group = placement_group
        self.strategy = scheduling_strategies.PlacementGroupSchedulingStrategy
        address = self.request["address"]
        asked = f"launch.ray.address: value is {address}"
        begin = (
            "begin one by `ray start --head`, or name its address, as in --set "
            "launch.ray.address=HOST:6379; auto is what RAY_ADDRESS says, else a cluster on this machine"
        )
        # Ray itself tries for minutes.
        place = re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address)
        if place:
            try:
                socket.create_connection((place[1], int(place[2])), 10).close()
            except OSError as error:
                fail(f"{asked}: no Ray cluster is reached there: {error}; {begin}")
        try:
            ray.init(
                address=address,
                namespace="slackline",
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
            )
        except Exception as error:
            text = one_line(error)
            if "ersion mismatch" in text:
                fail(
                    f"this Ray is not that of the cluster: {text}; install the cluster's Ray and Python here, "
                    f"or name such a Python by launch {{ ray {{ python: ... }} }} (now {sys.executable})"
                )
            if "ray[client]" in text:
                fail(f"{asked}: it needs more of Ray: {sys.executable} -m pip install 'ray[client]'")
            fail(f"{asked}: no Ray cluster is reached there: {text[:400]}; {begin}")
        # Its head, to which everything of a cluster is connected.
        self.head = f"{place[1]}:{place[2]}" if place else ray.get_runtime_context().gcs_address
        # Ray has put handlers of its own there. Whoever ends a group of processes tells
        # slackline run, too, which ends this one.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def get_nodes(self):
        bundles = self.request["bundles"]
        grows = self.request["autoscaled"]
        if not grows:
            reason = self.too_small()
            if reason:
                fail(reason)
        self.group = self.new_group(
            bundles,
            strategy="STRICT_SPREAD" if len(bundles) > 1 else "PACK",
            # For people; two jobs of one name have to differ.
            name=f"slackline {self.request['job']} {self.name[-8:]}",
        )
        began = said = time.monotonic()
        waited = False
        while not self.group.wait(timeout_seconds=SLICE_SECONDS):
            if self.closed.is_set():
                fail("nobody waits for nodes any more")
            reason = self.too_small()
            if reason and not grows:
                fail(reason)
            now = time.monotonic()
            if now - said < (SAY_AGAIN_SECONDS if waited else 1):
                continue
            free = self.ray.available_resources()
            kinds = [name for name in bundles[0] if not name.startswith("node:")]
            self.say(
                f"waits for Ray to give {self.asked_text()}, for {now - began:.0f} s so far: "
                + (
                    f"the cluster has to grow, its nodes are now: {self.nodes_text()}"
                    if reason
                    else f"in the whole cluster {self.describe({kind: free.get(kind, 0) for kind in kinds})} "
                    "are free"
                )
            )
            waited, said = True, now
        self.actors = [self.new_actor(index) for index in range(len(bundles))]
        self.addresses = self.await_actors(ACTOR_START_SECONDS, [])
        return self.addresses

    def new_actor(self, index):
        bundle = self.request["bundles"][index]
        return (
            self.ray.remote(SlacklineAgent)
            .options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                max_concurrency=64,
                max_restarts=0,
                scheduling_strategy=self.strategy(self.group, index),
            )
            .remote()
        )

    def await_actors(self, seconds, lost):
        """Their addresses. `lost`: those of nodes in whose place Ray gives others."""
        addresses = [""] * len(self.actors)
        asked = {actor.address.remote(): index for index, actor in enumerate(self.actors)}
        instead = f" in place of {', '.join(lost)}" if lost else ""
        began = said = time.monotonic()
        while asked:
            ready, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=SLICE_SECONDS)
            if self.closed.is_set():
                fail("nobody waits for nodes any more")
            for answer in ready:
                index = asked.pop(answer)
                try:
                    addresses[index] = self.ray.get(answer)
                except self.ray.exceptions.RayError as error:
                    if not lost:
                        fail(f"an actor of Ray has ended as it began: {one_line(error)[:400]}")
                    # Ray has not noticed yet that the node is gone.
                    time.sleep(1)
                    self.renew(index)
                    asked[self.actors[index].address.remote()] = index
            now = time.monotonic()
            if asked and now - began > seconds:
                fail(
                    f"Ray has not begun {len(asked)} of {len(addresses)} actors within {seconds} s{instead}; "
                    f"nodes now: {self.nodes_text()}; `ray status` says who has what"
                )
            if asked and now - said > (SAY_FIRST_SECONDS if said == began else SAY_AGAIN_SECONDS):
                self.say(
                    f"waits for Ray to begin {len(asked)} of {len(addresses)} actors{instead}, "
                    f"for {seconds} s at most; nodes now: {self.nodes_text()}"
                )
                said = now
        twice = [address for address, count in collections.Counter(addresses).items() if count > 1]
        if twice and self.request["bundles"][0].get("GPU", 0):
            fail(
                f"two nodes of Ray are at one address, {twice[0]}, so processes on the second would have the "
                "GPUs of the first; let one node of Ray have all of a machine, or ask for fewer by --nodes"
            )
        return addresses

    def replace(self):
        """Others in place of nodes that are gone. The addresses, of all."""
        with self.lock:
            lost = []
            for index, actor in enumerate(self.actors):
                try:
                    self.ray.get(actor.address.remote(), timeout=ONE_TRY_SECONDS)
                except self.ray.exceptions.RayError:
                    lost.append(self.addresses[index])
                    self.renew(index)
            self.addresses = self.await_actors(NODE_RETURN_SECONDS, lost)
            return self.addresses

    def why_gone(self):
        """Why the cluster as a whole is gone; empty: it is there."""
        host, port = self.head.rsplit(":", 1)
        end = time.monotonic() + ONE_TRY_SECONDS
        while True:
            try:
                socket.create_connection((host, int(port)), ONE_TRY_SECONDS).close()
            except OSError as error:
                return f"its head does not answer ({error.strerror or error})"
            # Where nodes go first, the head may follow.
            asked = [actor.address.remote() for actor in self.actors]
            ready, _ = self.ray.wait(asked, num_returns=len(asked), timeout=SLICE_SECONDS)
            for answer in ready:
                try:
                    self.ray.get(answer)
                    return ""
                except self.ray.exceptions.RayError:
                    pass
            if time.monotonic() > end:
                return ""
            time.sleep(SLICE_SECONDS)

    def renew(self, index):
        # One that is cut off would keep the bundle.
        self.ray.kill(self.actors[index])
        self.actors[index] = self.new_actor(index)

    # What goes to agents.

    def actor_at(self, host):
        """The actor, or why there is none."""
        with self.lock:
            if host not in self.addresses:
                return None, f"Ray has given no node at {host}; they are {', '.join(self.addresses)}"
            index = self.addresses.index(host)
            try:
                self.ray.get(self.actors[index].address.remote(), timeout=ONE_TRY_SECONDS)
                return self.actors[index], ""
            except self.ray.exceptions.RayError:
                pass
            # The node, or the actor alone.
            self.renew(index)
            try:
                now = self.ray.get(self.actors[index].address.remote(), timeout=ONE_TRY_SECONDS)
            except self.ray.exceptions.RayError as error:
                gone = f"the node of Ray at {host} is gone, and Ray has given no other yet"
                return None, f"{gone} ({type(error).__name__})"
            if now == host:
                return self.actors[index], ""
            return None, f"the node of Ray at {host} is gone; Ray gives {now} in its place"

    def serve(self, listener):
        while True:
            connection, _ = listener.accept()
            user = struct.unpack(
                "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )[1]
            if user != os.getuid():
                connection.close()
                continue
            threading.Thread(target=self.carry, args=(connection,), daemon=True).start()

    def carry(self, connection):
        def tell(channel, data):
            connection.sendall(HEADER.pack(channel, len(data)) + data)

        def refuse(code, text):
            tell(STDERR, text.encode() + b"\n")
            tell(EXIT, struct.pack(">i", code))

        number = None
        with connection:
            try:
                host, command = json.loads(receive_frame(connection)[1])
                actor, why = self.actor_at(host)
                if actor is None:
                    return refuse(NO_AGENT, why)
                with self.lock:
                    self.numbers += 1
                    started = self.numbers
                problem = self.ray.get(actor.start.remote(started, command))
                if problem is not None:
                    return refuse(*problem)
                number = started
                threading.Thread(
                    target=self.send_up, args=(connection, actor, number), daemon=True
                ).start()
                while True:
                    part = self.ray.get(actor.read.remote(number))
                    if part is None:
                        continue
                    if part[0] == EXIT:
                        number = None
                    tell(*part)
                    if part[0] == EXIT:
                        return
            except self.ray.exceptions.RayError as error:
                try:
                    refuse(
                        NO_AGENT,
                        f"its actor or its node of the Ray cluster at {self.head} is gone: "
                        f"{one_line(error).split(' class_name:')[0][:300]}",
                    )
                except OSError:
                    pass
            except (OSError, ValueError):
                # Nobody is there any more; the command ends with its stdin.
                pass
            finally:
                if number is not None:
                    actor.drop.remote(number)
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def send_up(self, connection, actor, number):
        data = b"."
        while data:
            try:
                data = connection.recv(PART_BYTES)
            except OSError:
                data = b""
            try:
                # One after the other: calls that are under way together may change places.
                self.ray.get(actor.write.remote(number, data))
            except self.ray.exceptions.RayError:
                return

    def end(self):
        for actor in self.actors:
            self.ray.kill(actor)
        if hasattr(self, "group"):
            self.ray.util.remove_placement_group(self.group)
        self.ray.shutdown()


def receive(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            return None
        data += part
    return data


def receive_frame(connection):
    header = receive(connection, HEADER.size)
    if header is None:
        raise ValueError("it ends within a frame")
    channel, count = HEADER.unpack(header)
    data = receive(connection, count)
    if data is None:
        raise ValueError("it ends within a frame")
    return channel, data


def serve(name):
    # What Ray prints goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def tell(**answer):
        with lock:
            answers.write(json.dumps(answer) + "\n")

    bridge = Bridge(name, lambda text: tell(say=text), json.loads(sys.stdin.readline()))
    # Whatever Ray does, nobody waits for this program once its stdin has ended.
    requests = queue.Queue()

    def read_requests():
        for line in sys.stdin:
            requests.put(json.loads(line))
        bridge.closed.set()
        requests.put(None)
        if not connected.is_set():
            os._exit(1)  # Ray may wait for minutes.
        time.sleep(10)
        os._exit(1)

    def watch():
        address = bridge.request["address"]
        if address == "auto" and os.environ.get("RAY_ADDRESS"):
            address = f"auto, which is {os.environ['RAY_ADDRESS']} by RAY_ADDRESS"
        if not connected.wait(SAY_FIRST_SECONDS):
            tell(say=f"waits for the Ray cluster at {address}, for {CONNECT_SECONDS} s at most")
        if not connected.wait(CONNECT_SECONDS - SAY_FIRST_SECONDS):
            tell(
                error=f"launch.ray.address: value is {address}: no Ray cluster is reached there within "
                f"{CONNECT_SECONDS} s; `ray status` on its head says whether it is up"
            )
            os._exit(1)

    gone = ""
    connected = threading.Event()
    for thread in (read_requests, watch):
        threading.Thread(target=thread, daemon=True).start()
    try:
        bridge.connect()
        connected.set()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0" + name)
        listener.listen(64)
        tell(hosts=bridge.get_nodes(), head=bridge.head)
        threading.Thread(target=bridge.serve, args=(listener,), daemon=True).start()
        while (request := requests.get()) is not None:
            if request["ask"] == "gone":
                gone = bridge.why_gone()
                tell(gone=gone)
            else:
                tell(hosts=bridge.replace(), head=bridge.head)
    except SystemExit as problem:
        tell(error=str(problem))
    except Exception as problem:
        tell(error=f"Ray: {type(problem).__name__}: {one_line(problem)[:400]}")
    # Of a cluster that is gone Ray would wait for an answer.
    if connected.is_set() and not gone:
        bridge.end()
    # Threads that wait for Ray are not waited for.
    os._exit(0)


def reach(name, host, command):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    bridge = socket.socket(socket.AF_UNIX)
    try:
        bridge.connect("\0" + name)
        asked = json.dumps([host, command]).encode()
        bridge.sendall(HEADER.pack(0, len(asked)) + asked)

        def send_up():
            while True:
                data = os.read(0, PART_BYTES)
                if not data:
                    bridge.shutdown(socket.SHUT_WR)
                    return
                bridge.sendall(data)

        threading.Thread(target=send_up, daemon=True).start()
        while True:
            channel, data = receive_frame(bridge)
            if channel == EXIT:
                os._exit(struct.unpack(">i", data)[0])
            while data:
                data = data[os.write(channel, data) :]
    except (OSError, ValueError):
        os.write(2, b"the bridge to Ray has ended, as when the head of the cluster is gone\n")
        os._exit(NO_AGENT)


def main():
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        reach(sys.argv[2], sys.argv[3], sys.argv[4:])


if __name__ == "__main__":
    main()
