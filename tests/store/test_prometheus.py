import re

from jigsaw_jax.store import prometheus

WORKER = {"name": 'w"1\\\n', "role": "sample", "state": "lost", "lost": 2}
FACTS = {
    "name": "demo",
    "status": {"state": "running", "silent_s": 1.5},
    "updates": 8,
    "damaged": 0,
    "newest": {
        "update": 7,
        "reward/mean": 0.25,
        "reward-mean": 9.0,
        "loss": None,
        "note": "text",
        "ledger/ready": 3,
    },
    "evaluation": {"updates": 4, "eval/pass@4": 0.5},
    "workers": [WORKER | {"version": None, "age_s": 2.0}],
}
LINE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*\{(\w+="([^"\\\n]|\\[\\"n])*",?)*\} \S+')


def test_every_number_is_a_gauge_of_the_run():
    lines = prometheus.text(FACTS).splitlines()
    assert 'jigsaw_reward_mean{run="demo"} 0.25' in lines
    assert 'jigsaw_eval_pass_4{run="demo"} 0.5' in lines
    assert 'jigsaw_ledger_samples{run="demo",state="ready"} 3' in lines
    assert 'jigsaw_state{run="demo",state="running"} 1' in lines
    assert 'jigsaw_state{run="demo",state="ended"} 0' in lines
    assert 'jigsaw_updates_total{run="demo"} 8' in lines
    assert not [line for line in lines if "note" in line or "loss{" in line]


def test_the_text_follows_the_format():
    text = prometheus.text(FACTS)
    assert text.endswith("\n")
    names = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind == "gauge"
            names.append(name)
        else:
            assert LINE.fullmatch(line), line
            assert line.startswith(names[-1] + "{")
            float(line.rsplit(" ", 1)[1])
    assert len(set(names)) == len(names)


def test_labels_are_escaped_and_unknown_versions_left_out():
    lines = prometheus.text(FACTS).splitlines()
    labels = r'{run="demo",worker="w\"1\\\n",role="sample"}'
    assert f"jigsaw_worker_up{labels} 0" in lines
    assert f"jigsaw_worker_losses{labels} 2" in lines
    assert not [line for line in lines if "jigsaw_worker_version" in line]
