// The client against the running service, which the environment names and where somebody else does the work.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, WaitTimeout } from "gpu-orchestrator-client";

async function all(generator) {
  const found = [];
  for await (const one of generator) found.push(one);
  return found;
}

const { SERVICE_URL, SERVICE_TOKEN, POOL } = process.env;

test("the running service: from a submission to the output", async () => {
  const client = new Client({ url: SERVICE_URL, token: SERVICE_TOKEN });
  const [waiting] = await client.submitMany([{ task_type: "t", pool: POOL, run_after: "2100-01-01T00:00:00Z" }]);
  await assert.rejects(waiting.wait({ timeoutMs: 200 }), WaitTimeout);
  const cancelled = await waiting.cancel();
  assert.equal(cancelled.status, "Cancelled");
  await assert.rejects(waiting.retry({ version: "other" }), (error) => error.status === 412 && error.id === "E075");
  await assert.rejects(client.submit({ task_type: "" }), (error) => error.status === 422 && error.id === "E052");
  const task = await client.submit({ task_type: "film", params: { n: 1 }, pool: POOL });
  const seen = await all(task.events());
  assert.deepEqual([seen.at(0)?.name, seen.at(-1)?.name, seen.at(-1)?.status], ["state", "ended", "Complete"]);
  const info = await task.wait();
  assert.deepEqual([info.status, info.params], ["Complete", { n: 1 }]);
  const output = await task.output();
  assert.equal(await (await fetch(output.url)).text(), "a film");
  const listed = await all(client.tasks());
  assert.deepEqual(listed.map((one) => one.id).sort(), [task.id, waiting.id].sort());
  assert.equal((await all(client.tasks({ limit: 1 }))).length, 1);
});
