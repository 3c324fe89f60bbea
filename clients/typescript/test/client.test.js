// The client against servers that lose answers, are busy, or break streams.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { ApiError, Client, ServiceUnavailable, WaitTimeout } from "gpu-orchestrator-client";

/** A client of a server that answers with these functions, one for each request, and the requests that it saw. */
async function against(t, ...answers) {
  const seen = [];
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (part) => { body += part; });
    request.on("end", () => {
      seen.push({ method: request.method, url: request.url, headers: request.headers, body });
      (answers.shift() ?? ((r) => r.destroy()))(response);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => { server.closeAllConnections(); server.close(); });
  const client = new Client({ url: `http://127.0.0.1:${server.address().port}/`, token: "secret", retries: 3 });
  return { client, seen };
}

const lost = (response) => response.destroy();
const json = (status, content, headers = {}) => (response) => {
  response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(JSON.stringify(content));
};
const problem = (status, id, headers) => json(status, { id, title: "no", detail: "because", fix: "do", status }, headers);
const events = (...parts) => (response) => {
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  response.write(parts.join(""));
  response.destroySoon?.();
  setTimeout(() => response.destroy(), 20);
};
const event = (name, id, content) => `event: ${name}\nid: ${id}\ndata: ${JSON.stringify(content)}\n\n`;

async function all(generator) {
  const found = [];
  for await (const one of generator) found.push(one);
  return found;
}

test("a number that JSON does not have is refused before it is sent", async (t) => {
  const { client, seen } = await against(t);
  for (const loss of [NaN, Infinity, -Infinity]) {
    await assert.rejects(client.submit({ task_type: "t", params: { a: [{ loss }] } }), new TypeError(`loss: ${loss} is not JSON`));
  }
  assert.equal(seen.length, 0);
});

test("a submission whose answers are lost is repeated under one key", async (t) => {
  const { client, seen } = await against(t, lost, problem(503, "E050"), json(201, { id: "7", created: true }));
  assert.equal((await client.submit({ task_type: "t", params: { n: 1 } })).id, "7");
  assert.equal(new Set(seen.map((one) => one.headers["idempotency-key"])).size, 1);
  assert.deepEqual(seen.map((one) => one.body), Array(3).fill('{"task_type":"t","params":{"n":1}}'));
  assert.deepEqual([seen[0].method, seen[0].url, seen[0].headers.authorization], ["POST", "/api/v1/tasks", "Bearer secret"]);
});

test("it waits as long as Retry-After says", async (t) => {
  const { client } = await against(t, problem(429, "E048", { "Retry-After": "1" }), json(200, { id: "7" }));
  const began = performance.now();
  await client.task("7").info();
  assert.ok(performance.now() - began > 900);
});

test("a retry without a version is sent once, one with a version again", async (t) => {
  const { client, seen } = await against(t, lost, lost, json(200, { task: { id: "7", status: "Queued" } }));
  await assert.rejects(client.task("7").retry(), ServiceUnavailable);
  assert.equal(seen.length, 1);
  assert.equal((await client.task("7").retry({ version: "3" })).status, "Queued");
  assert.deepEqual([seen.length, seen[2].headers["if-match"]], [3, '"3"']);
});

test("a refusal has its id; a proxy's page and silence are told apart", async (t) => {
  const page = (response) => response.writeHead(413).end("<html>too large</html>");
  const { client, seen } = await against(t, problem(404, "E041"), page);
  await assert.rejects(client.task("../7").info(), (error) => error instanceof ApiError && error.id === "E041" && error.fix === "do");
  assert.equal(seen[0].url, "/api/v1/tasks/..%2F7");
  await assert.rejects(client.task("7").info(), (error) => error.status === 413 && error.detail.includes("too large"));
  await assert.rejects(client.task("7").info(), ServiceUnavailable);
  assert.equal(seen.length, 2 + 4);
});

test("a broken stream goes on after the last event", async (t) => {
  const { client, seen } = await against(
    t,
    events("retry: 2000\n\n: hello\n\n", event("state", "1", { status: "Queued", progress: null, attempt: 0 })),
    problem(503, "E050"),
    events(event("state", "2", { status: "In Progress", progress: { fraction: 0.5 }, attempt: 1 }), 'data: {"hal'),
    events(event("ended", "3", { status: "Complete", progress: null, attempt: 1 })),
  );
  const found = await all(client.task("7").events());
  assert.deepEqual(found.map((one) => [one.name, one.id, one.status]), [
    ["state", "1", "Queued"], ["state", "2", "In Progress"], ["ended", "3", "Complete"],
  ]);
  assert.deepEqual(seen.map((one) => one.headers["last-event-id"]), [undefined, "1", "1", "2"]);
});

test("a signal ends a call, its repetitions and a stream", async (t) => {
  const { client } = await against(t, () => {}, problem(429, "E048", { "Retry-After": "50" }), (response) => {
    response.writeHead(200, { "Content-Type": "text/event-stream" }).write(event("state", "1", { status: "Queued" }));
  });
  for (let number = 0; number < 2; number++) {
    await assert.rejects(client.task("7").info({ signal: AbortSignal.timeout(100) }), { name: "TimeoutError" });
  }
  await assert.rejects(all(client.task("7").events({ signal: AbortSignal.timeout(200) })), { name: "TimeoutError" });
});

test("the list asks for every page", async (t) => {
  const { client, seen } = await against(
    t, json(200, { tasks: [{ id: "1" }], next: "a b" }), json(200, { tasks: [], next: "c" }), json(200, { tasks: [{ id: "2" }], next: null }),
  );
  assert.deepEqual((await all(client.tasks({ status: "Queued" }))).map((one) => one.id), ["1", "2"]);
  assert.deepEqual(seen.map((one) => one.url.slice(13)), ["?status=Queued", "?status=Queued&cursor=a+b", "?status=Queued&cursor=c"]);
});

test("a wait ends in time if the service says nothing, or asks for a long pause", async (t) => {
  const { client } = await against(t, () => {}, problem(429, "E048", { "Retry-After": "30" }));
  await assert.rejects(client.task("7").wait({ timeoutMs: 50 }), WaitTimeout);
  await assert.rejects(client.task("7").wait({ timeoutMs: 50 }), WaitTimeout);
});

test("a filter with several values is sent once for each", async (t) => {
  const { client, seen } = await against(t, json(200, { tasks: [], next: null }));
  await all(client.tasks({ label: ["a=1", "b=2"], status: undefined }));
  assert.equal(seen[0].url, "/api/v1/tasks?label=a%3D1&label=b%3D2");
});

test("a limit counts the tasks of all pages", async (t) => {
  const page = (next, ...ids) => json(200, { tasks: ids.map((id) => ({ id })), next });
  const { client, seen } = await against(t, page("c1", "a", "b"), page("c2", "c", "d"), page(null, "e"));
  assert.deepEqual((await all(client.tasks({ limit: 3, status: "Queued" }))).map((one) => one.id), ["a", "b", "c"]);
  assert.deepEqual(seen.map((one) => one.url), ["/api/v1/tasks?limit=3&status=Queued", "/api/v1/tasks?limit=1&status=Queued&cursor=c1"]);
});

test("an address and a token are read as other tools write them", () => {
  for (const url of ["https://gpu.example.com/", "https://gpu.example.com/api/v1/", " 'https://gpu.example.com'\r\n"]) {
    assert.ok(new Client({ url, token: "secret\r\n" }));
  }
  for (const url of ["gpu.example.com", "https://", "https://gpu.example.com/?x", "ftp://gpu.example.com", "<url>"]) {
    assert.throws(() => new Client({ url, token: "secret" }), /the url is none such as/);
  }
  assert.throws(() => new Client({ url: "https://gpu.example.com", token: "two words" }), /the token has a character/);
});
