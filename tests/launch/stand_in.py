"""Stands in for the gcloud program: logs what it is asked, and answers from a table.

    python stand_in.py FOLDER WORD...

FOLDER/world.json holds what there is: `queued` and `nodes` (objects as the TPU API has
them), `quota` (id to limits by zone), `types` (of the zone), `states` (by slice, what
it goes through, one step a list; `later` when it has been deleted and asked for again,
`always` whenever), `ssh` (by a piece of the command, answers in turn,
the last for good) and `fail` (by a piece of the words, how often to fail). It keeps
what `create` and `delete` change there. FOLDER/log.jsonl gets the words of each call.
"""

import fcntl
import json
import pathlib
import re
import sys


def main():
    folder, words = pathlib.Path(sys.argv[1]), sys.argv[2:]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(words) + "\n")
        world = json.loads((folder / "world.json").read_text())
        code = answer(world, words)
        (folder / "world.json").write_text(json.dumps(world))
    sys.exit(code)


def answer(world, words):
    line = " ".join(words)
    for piece, times in world["fail"].items():
        if piece in line and times:
            world["fail"][piece] -= 1
            sys.stderr.write(f"ERROR: (gcloud) {piece} failed\n")
            return 1
    flags = dict(w[2:].split("=", 1) for w in words if w[:2] == "--" and "=" in w)
    flags |= {word[2:]: True for word in words if word[:2] == "--" and "=" not in word}
    named = [word for word in words if not word.startswith("--")]
    for head, answers in ANSWERS.items():
        if line.startswith(head):
            return answers(world, named[len(head.split()) :], flags) or 0
    sys.stderr.write(f"ERROR: the stand-in does not know: {line}\n")
    return 9


def describe_type(world, named, flags):
    if named[0] not in world["types"]:
        sys.stderr.write("ERROR: NOT_FOUND\n")
        return 1
    return table([{"type": named[0]}], flags)


def list_queued(world, _, flags):
    for name, states in world["states"].items():
        if name in world["queued"] and states:
            move(world, name, states.pop(0))
    return table(world["queued"].values(), flags)


def move(world, name, state):
    """A queued resource changes its state, and its VM comes or goes with it."""
    own = world["queued"][name]
    own["state"]["state"] = state
    asked = own["tpu"]["nodeSpec"][0]["node"]
    if state == "ACTIVE":
        world["nodes"][name] = {
            "name": f"projects/P/locations/Z/nodes/{name}",
            "state": "READY",
            "acceleratorType": asked["acceleratorType"],
            "schedulingConfig": {"spot": "spot" in own},
            "labels": asked["labels"],
            "createTime": "2026-11-30T01:00:00Z",
            "networkEndpoints": [{"ipAddress": f"10.0.0.{len(world['nodes']) + 2}"}],
        }
    elif state in ("SUSPENDED", "FAILED"):
        world["nodes"].pop(name, None)


def create(world, named, flags):
    if named[0] in world["queued"]:
        sys.stderr.write("ERROR: ALREADY_EXISTS\n")
        return 1
    pairs = (pair.split("=") for pair in flags["labels"].split(","))
    node = {"acceleratorType": flags["accelerator-type"], "labels": dict(pairs)}
    world["queued"][named[0]] = {
        "name": f"projects/P/locations/Z/queuedResources/{named[0]}",
        "state": {"state": "WAITING_FOR_RESOURCES"},
        "tpu": {"nodeSpec": [{"nodeId": flags["node-id"], "node": node}]},
        "createTime": "2026-11-30T00:30:00Z",
    } | ({"spot": {}} if flags.get("spot") else {})
    usual = world["always"].get(named[0], ["PROVISIONING", "ACTIVE"])
    world["states"].setdefault(named[0], list(usual))
    return 0


def delete_queued(world, named, flags):
    del world["queued"][named[0]]
    if flags.get("force"):
        world["nodes"].pop(named[0], None)
    world["states"].pop(named[0], None)
    if world["later"].get(named[0]):
        world["states"][named[0]] = world["later"].pop(named[0])


def quota(world, _, flags):
    limits = world["quota"].get(flags["filter"].removeprefix("quotaId="), {})
    rows = [
        {"dimensionsInfos": {"details": {"value": v}, "applicableLocations": [zone]}}
        for zone, v in limits.items()
    ]
    return table(rows, flags)


def ssh(world, _, flags):
    for piece, answers in world["ssh"].items():
        if piece in flags["command"]:
            said = answers.pop(0) if len(answers) > 1 else answers[0]
            if said == "FAIL":
                return 1
            print(said)
    return 0


def scp(_, named, __):
    if named[0].endswith("auth_token") and ":" in named[0]:
        pathlib.Path(named[-1]).write_text("secret")


def describe_node(world, named, flags):
    return table([world["nodes"][named[0]]], flags)


def table(rows, flags):
    """Print rows as gcloud's csv and value formats do."""
    (fields,) = re.findall(r"^(?:csv\[no-heading\]|value)\((.*)\)$", flags["format"])
    for row in rows:
        print(",".join(str(cell(row, field)) for field in fields.split(",")))
    return 0


def cell(value, field):
    for key in field.split("."):
        if key == "basename()":
            return value.rsplit("/", 1)[-1]
        if key.startswith("list("):
            return " ".join(value)
        ((name, index),) = re.findall(r"^(\w+)(?:\[(\d+)\])?$", key)
        value = value.get(name)
        value = value[int(index)] if index and value else value
        if value is None:
            return ""
    return value


ANSWERS = {
    "compute tpus accelerator-types describe": describe_type,
    "compute tpus queued-resources list": list_queued,
    "compute tpus queued-resources create": create,
    "compute tpus queued-resources delete": delete_queued,
    "compute tpus tpu-vm list": lambda world, _, flags: table(
        world["nodes"].values(), flags
    ),
    "compute tpus tpu-vm describe": describe_node,
    "compute tpus tpu-vm delete": lambda world, named, _: (
        world["nodes"].pop(named[0]) and 0
    ),
    "compute tpus tpu-vm ssh": ssh,
    "compute tpus tpu-vm scp": scp,
    "beta quotas info list": quota,
    "storage buckets describe": lambda *_: 0,
}

if __name__ == "__main__":
    main()
