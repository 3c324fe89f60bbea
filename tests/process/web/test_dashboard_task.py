"""The list of tasks, and the page of a task: why, attempts, its output, its log, and what it needs."""

import json

import psycopg
import pytest

from orchestrator.adapters.s3_signing import origins
from tests.process.web.api_rig import ADMIN
from tests.process.web.builders import done
from tests.process.web.dashboard_rig import HOSTILE, DashboardRig
from tests.process.web.test_dashboard_worker import Shipping


async def completed(board: DashboardRig, name: str, content: bytes = b"x") -> str:
    """A task of the board's pool that has an output with this name; its id."""
    worker = await board.worker()
    (task,) = await board.gateway.submit(worker.pool)
    key = f"{(await worker.claim())['tasks'][0]['output_prefix']}{name}"
    await board.api.blobs.put(key, content, content_type="application/octet-stream")
    answer = await worker.call("worker_complete", **done(task, board.api.blobs.location(key)))
    assert answer.json() == {"outcome": "ok"}
    return task


@pytest.mark.parametrize("stored", ["[1]", '"x"', "7", '{"location": "s3://b/t.mp4", "bytes": "many"}'])
async def test_a_task_with_an_odd_record_of_its_output_is_shown(
    board: DashboardRig, hand: psycopg.AsyncConnection, stored: str
) -> None:
    """The column is in the user's table."""
    (task,) = await board.gateway.submit(board.pool)
    await hand.execute(
        "update tasks set status = 'Complete', output_location = 's3://b/t.mp4', output_object = %s where id = %s",
        (stored, task),
    )
    visitor = await board.visitor(ADMIN)
    assert "s3://b/t.mp4" in (await visitor.get(f"/tasks/{task}")).text
    answer = await visitor.get(f"/api/v1/tasks/{task}/output", headers={"Authorization": f"Bearer {ADMIN}"})
    assert answer.status_code < 500, answer.text


async def test_tasks_are_listed_and_filtered(board: DashboardRig) -> None:
    """By status, type, tenant and label in the address, and by the begin of an id."""
    (first,) = await board.gateway.submit(board.pool, tenant="acme", labels={"team": "x&y"})
    (other,) = await board.gateway.submit(board.pool, task_type="u")
    visitor = await board.visitor(await board.token("read", pools=[board.pool]))
    found = {
        "": {first, other}, "?status=Queued": {first, other}, "?status=Failed": set(), "?task_type=u": {other},
        "?tenant=acme": {first}, "?label=team%3Dx%26y": {first}, f"?id={first[:13]}": {first}, "?id=zz": set(),
    }  # fmt: skip
    for query, ids in found.items():
        text = (await visitor.get(f"/tasks{query}")).text
        assert {name for name in (first, other) if f'href="/tasks/{name}"' in text} == ids, query
    assert "2 open tasks" in (await visitor.get("/tasks")).text
    for wrong in ("status=Nothing", "label=nothing", "cursor=nothing"):
        assert (await visitor.get(f"/tasks?{wrong}")).status_code in {400, 422}, wrong


async def test_a_list_has_pages(board: DashboardRig) -> None:
    """Each task is on one of them."""
    ids = set(await board.gateway.submit(board.pool, 60))
    visitor = await board.visitor(await board.token("read", pools=[board.pool]))
    seen, address = [], "/tasks"
    while address:
        text = (await visitor.get(address)).text
        seen += [name for name in ids if f'href="/tasks/{name}"' in text]
        address = text.partition('" rel="next"')[0].rpartition('href="')[2] if 'rel="next"' in text else ""
    assert (len(seen), set(seen)) == (60, ids)


async def test_a_task_of_others_is_not_found(board: DashboardRig) -> None:
    """Neither its page, nor its log, nor its output."""
    task = await completed(board, "x.png")
    visitor = await board.visitor(await board.token("read", pools=["another"]))
    for path in (
        f"/tasks/{task}",
        f"/tasks/{task}/log",
        f"/tasks/{task}/output",
        "/tasks/nothing",
        "/tasks/nothing/output",
    ):
        assert (await visitor.get(path)).status_code == 404, path
    assert task not in (await visitor.get(f"/tasks?id={task}")).text.partition("<table")[2]
    nobody = await board.visitor()
    assert [(await nobody.get(f"/tasks/{task}/{end}")).status_code for end in ("log", "output")] == [401, 401]


async def test_an_output_is_shown_and_comes_from_the_bucket(board: DashboardRig) -> None:
    """Its kind follows from its name; the page has an address of ours, which leads to a URL for one request."""
    visitor = await board.visitor(ADMIN)
    for name, element in (
        ("a.png", "<img "),
        ("b.mp4", "<video "),
        ("c.wav", "<audio "),
        ("d.bin", None),
        ("e.html", None),
    ):
        task = await completed(board, name, name.encode())
        text = (await visitor.get(f"/tasks/{task}")).text
        assert [one for one in ("<img ", "<video ", "<audio ") if one in text] == ([element] if element else [])
        assert f'"/tasks/{task}/output"' in text
        assert "X-Amz" not in text
        answer = await visitor.get(f"/tasks/{task}/output")
        assert (answer.status_code, answer.headers["cache-control"]) == (302, "no-store")
        assert (await board.client.get(answer.headers["location"])).content == name.encode()


async def test_an_output_elsewhere_gets_no_link(board: DashboardRig) -> None:
    """A pod can name any place."""
    worker, visitor = await board.worker(), await board.visitor(ADMIN)
    (task,) = await board.gateway.submit(worker.pool)
    await worker.claim()
    await worker.call("worker_complete", **done(task, "https://example.com/x.png"))
    text = (await visitor.get(f"/tasks/{task}")).text
    assert "https://example.com/x.png" in text
    assert ("<img " in text, f"/tasks/{task}/output" in text) == (False, False)


async def test_a_task_names_what_it_needs_and_what_needs_it(board: DashboardRig) -> None:
    """With links in both directions."""
    (first,) = await board.gateway.submit(board.pool)
    (second,) = await board.gateway.submit(board.pool, depends_on=[first])
    visitor = await board.visitor(ADMIN)
    text = (await visitor.get(f"/tasks/{first}")).text
    assert ("Waiting for it" in text, f'href="/tasks/{second}"' in text) == (True, True)
    text = (await visitor.get(f"/tasks/{second}")).text
    assert ("0 of 1 complete" in text, f'href="/tasks/{first}"' in text) == (True, True)


async def test_a_task_says_who_cancelled_it(board: DashboardRig) -> None:
    """From the audit log, which is for an admin alone; not to a token that sees a part of the fleet."""
    task, other = await board.gateway.submit(board.pool, count=2)
    whole, reader, mine = [
        await board.visitor(token)
        for token in (ADMIN, await board.token("read"), await board.token("read", pools=[board.pool]))
    ]
    form = (await whole.get(f"/do/cancel?task={task}")).text.partition('name="csrf" value="')[2].partition('"')[0]
    await whole.post("/do/cancel", data={"csrf": form, "task": task})
    said = "<b>env:admin</b> task.cancel"
    assert said in (await whole.get(f"/tasks/{task}")).text
    assert f'href="/audit?subject={task}"' in (await whole.get(f"/tasks/{task}")).text
    assert said in (await reader.get(f"/tasks/{task}")).text
    assert "/audit" not in (await reader.get(f"/tasks/{task}")).text
    assert "env:admin" not in (await mine.get(f"/tasks/{task}")).text
    assert "Nobody has changed it" in (await whole.get(f"/tasks/{other}")).text
    assert "task.cancel" in (await whole.get(f"/audit?subject={task}")).text
    assert "Nobody has done anything with this" in (await whole.get(f"/audit?subject={other}")).text


async def test_hostile_params_are_text_and_shortened(board: DashboardRig) -> None:
    """What people and pods wrote is shown as they wrote it, without effect."""
    params = {"a": HOSTILE, "long": "x" * 100_000}
    (task,) = await board.gateway.submit(board.pool, params=params, labels={"a": "<b>&c"})
    answer = await (await board.visitor(ADMIN)).get(f"/tasks/{task}")
    assert "<script>document" not in answer.text
    assert "&lt;script&gt;document" in answer.text
    assert "shortened to 20,000 of" in answer.text
    assert len(answer.content) < 60_000
    assert json.dumps("\x1b")[1:-1] in answer.text  # as JSON writes it


async def test_the_log_of_an_attempt_has_its_own_lines(board: DashboardRig) -> None:
    """Those of other tasks on the same worker are not shown, and not in the download."""
    worker, visitor = await board.worker(), await board.visitor(ADMIN)
    (task,) = await board.gateway.submit(worker.pool)
    await worker.claim()
    mark, shipping = f"--- task {task} attempt 1", Shipping(board, worker)
    own = f"{mark} begins: a:b\nhello\n{mark} ends: done\n"
    await shipping.ship(f"of another\n{own}of a later one\n".encode())
    text = (await visitor.get(f"/tasks/{task}?attempt=1")).text
    assert ("hello" in text, "of another" in text, "of a later one" in text) == (True, False, False)
    assert (await visitor.get(f"/tasks/{task}/log?attempt=1")).text == own


def test_the_origin_of_presigned_urls_is_known_without_a_client() -> None:
    """The policy of pages names it."""
    assert origins("https://s3.example.com:9000/x", "b", "r") == "https://s3.example.com:9000"
    assert "https://b.s3.eu-west-1.amazonaws.com" in origins(None, "b", "eu-west-1").split()
    assert "https://s3.eu-west-1.amazonaws.com" in origins(None, "b.c", "eu-west-1").split()


async def test_a_progress_of_any_json_does_not_break_a_page(board: DashboardRig, hand: psycopg.AsyncConnection) -> None:
    """Users write the column by SQL: what is no message and no fraction is left out."""
    worker = await board.worker()
    await board.gateway.submit(worker.pool)
    task = (await worker.claim())["tasks"][0]["id"]
    visitor = await board.visitor(ADMIN)
    for progress, shown in (
        ('{"message": {"a": 1}}', "some"), ('{"fraction": 1e400, "message": "half"}', "half"), ('"text"', "some"),
        ('{"fraction": true}', "some"), ("[1]", "some"), ('{"fraction": 0.25, "message": 7}', "25%"),
    ):  # fmt: skip
        await hand.execute("update public.tasks set progress = %s::jsonb where id = %s", (progress, task))
        board.dashboard.shared.forget_all()
        for path in (f"/tasks/{task}", "/tasks"):
            answer = await visitor.get(path)
            assert answer.status_code == 200, (path, progress)
        page = (await visitor.get(f"/tasks/{task}")).text
        assert f"attempts. {shown}" in page, progress
        explanation = await board.client.get(
            f"/api/v1/tasks/{task}/explanation", headers={"Authorization": f"Bearer {ADMIN}"}
        )
        assert explanation.status_code == 200, progress
