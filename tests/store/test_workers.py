from jigsaw_jax.store.workers import Workers

START = {"kind": "start", "incarnation": 2, "pid": 77}


def _mark(worker, name, **fields):
    return {"kind": "mark", "track": f"worker/{worker}", "name": name, **fields}


def test_a_worker_is_hired_joins_is_lost_and_comes_back():
    workers = Workers()
    workers.hear(START, 1.0)
    workers.hear(_mark("w1", "hired", role="sample", version=-1, pid=0), 2.0)
    (row,) = workers.rows(0.0)
    assert (row["state"], row["version"], row["pid"]) == ("starting", None, None)
    workers.hear(_mark("w1", "joined", role="sample", incarnation=1, pid=5), 3.0)
    workers.hear(_mark("w1", "heartbeat", version=4), 9.0)
    (row,) = workers.rows(0.0)
    assert row["state"] == "working"
    assert (row["version"], row["pid"], row["heard_s"]) == (4, 5, 9.0)
    workers.hear(_mark("w1", "lost", reason="no answer"), 12.0)
    (row,) = workers.rows(0.0)
    assert (row["state"], row["lost"], row["reason"]) == ("lost", 1, "no answer")
    workers.hear(_mark("w1", "hired", incarnation=2), 13.0)
    workers.hear(_mark("w1", "role", role="train"), 14.0)
    (row,) = workers.rows(0.0)
    assert (row["state"], row["role"]) == ("working", "train")
    assert (row["lost"], row["incarnation"]) == (1, 2)


def test_marks_may_lack_anything():
    workers = Workers()
    workers.hear({"kind": "mark", "track": "worker/b", "name": "news"}, 1.0)
    workers.hear(_mark("a", "heartbeat", version=None, pid="x", role=None), 2.0)
    rows = [(row["name"], row["version"], row["role"]) for row in workers.rows(0.0)]
    assert rows == [("a", None, ""), ("b", None, "")]


def test_a_run_of_one_process_is_one_worker():
    workers = Workers()
    assert workers.rows(5.0) == []
    workers.hear(START, 1.0)
    publish = {"kind": "interval", "track": "publish", "name": "publish", "version": 3}
    workers.hear(publish, 4.0)
    (row,) = workers.rows(5.0)
    assert (row["name"], row["pid"], row["version"]) == ("local", 77, 3)
    assert (row["heard_s"], row["incarnation"]) == (5.0, 2)


def test_a_new_controller_forgets_the_workers_of_the_last():
    workers = Workers()
    workers.hear(_mark("w1", "joined"), 1.0)
    workers.hear(START, 2.0)
    assert [row["name"] for row in workers.rows(2.0)] == ["local"]
