"""Scripts whose job loses a server, and goes on with the copies of its shards."""

from support import BIN, CONFIG, LOOP, USUAL, run_job

COPIES = (
    CONFIG.replace('server { host: "127.0.0.1" }', 'server { host: "127.0.0.1" count: 3 }')
    + "replicas: 1 limits { lease_ms: 2000 }\n"
)

KILLS = """
import json, os, signal, subprocess
steps = 0
def kill_server_1_once():
    global steps
    steps += 1
    if job.rank != 0 or steps != 20 or sys.argv[1] != "kill":
        return
    text = subprocess.check_output(["SLACKLINE", "status", sys.argv[2], "--json"])
    pid = next(server["pid"] for server in json.loads(text)["server"] if server["index"] == 1)
    os.kill(pid, signal.SIGKILL)
""".replace("SLACKLINE", str(BIN / "slackline"))


def test_a_script_ends_with_the_same_bits_when_a_server_is_killed(tmp_path):
    loop = LOOP.replace("        opt.step()\n", "        opt.step()\n        kill_server_1_once()\n")
    script = USUAL.replace(LOOP, KILLS + loop)
    hashes = {}
    for name in ("still", "kill"):
        folder = str(tmp_path / name)
        run = run_job(
            tmp_path, script, "--mode", "bsp", args=[name, folder], config=COPIES, name=name
        ).succeeded()
        hashes[name] = run.summary["model_sha256"]
        assert ("server 1 (pid " in run.output) == (name == "kill"), run.output
    assert hashes["kill"] == hashes["still"]
