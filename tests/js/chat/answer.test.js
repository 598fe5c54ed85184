import assert from "node:assert/strict";
import { test } from "node:test";

import { apply, begun, isContinuable, newAnswer, thinkingSeconds } from "../../../static/js/chat/answer-events.js";
import { EventReader } from "../../../static/js/chat/event-stream.js";
import { stageOf } from "../../../static/js/chat/stage.js";

const created = { id: "resp_1", model: "m" };
const timings = { predicted_n: 10, predicted_ms: 1000 };
const usage = { output_tokens_details: { reasoning_tokens: 4 } };
const ended = { status: "completed", usage, timings, error: null, incomplete_details: null };
const events = [
  { type: "response.created", response: created },
  { type: "response.reasoning_text.delta", delta: "so" },
  { type: "response.output_text.delta", delta: "1, " },
  { type: "response.output_text.delta", delta: "2, ", drafted: true },
  { type: "response.output_text.delta", delta: "3", drafted: true },
  { type: "response.output_text.delta", delta: "." },
  { type: "response.completed", response: ended },
].map((event, sequence_number) => ({ ...event, sequence_number }));

test("an answer is what its events say", () => {
  const answer = newAnswer({ created: 0 });
  const ends = events.map((event, index) => apply(answer, event, 100 * index));
  assert.deepEqual(ends, [...Array(6).fill(false), true]);
  assert.equal(answer.text, "1, 2, 3.");
  assert.equal(answer.reasoning, "so");
  assert.deepEqual(answer.drafted, [[3, 7]]);
  assert.equal(answer.firstMs, 100);
  assert.equal(answer.response, "resp_1");
  assert.equal(answer.status, "done");
  assert.equal(thinkingSeconds(answer), 0.1);
});

test("events that were seen are not applied again", () => {
  const answer = newAnswer({ created: 0 });
  for (const event of [...events.slice(0, 4), ...events]) apply(answer, event, 0);
  assert.equal(answer.text, "1, 2, 3.");
});

test("after an interruption the server says how long it thought", () => {
  const answer = newAnswer({ created: 0 });
  apply(answer, events[0], 0);
  answer.resumed = true;
  for (const event of events) apply(answer, event, 1e9);
  assert.equal(answer.firstMs, undefined);
  assert.equal(thinkingSeconds(answer), 0.4);
});

test("an answer ends as the response does", () => {
  const end = (response) => {
    const answer = newAnswer({ created: 0 });
    const event = { type: "response.failed", sequence_number: 0 };
    apply(answer, { ...event, response: { ...ended, ...response } }, 0);
    return answer;
  };
  assert.equal(end({ status: "cancelled" }).status, "stopped");
  assert.equal(end({ status: "incomplete", incomplete_details: {} }).cut, true);
  const failed = end({ status: "failed", error: { code: "x" } });
  assert.deepEqual([failed.status, failed.error], ["failed", { code: "x" }]);
});

test("events are read however the stream is cut", () => {
  const stream = ': keep-alive\n\nevent: a\ndata: {"n":1}\n\nevent: b\ndata: {"n":"é\\n"}\n\n';
  for (let size = 1; size < stream.length; size++) {
    const reader = new EventReader();
    const read = [];
    for (let at = 0; at < stream.length; at += size) {
      read.push(...reader.feed(stream.slice(at, at + size)));
    }
    assert.deepEqual(read, [{ n: 1 }, { n: "é\n" }]);
  }
});

test("before the first token the page says what the server does", () => {
  const live = {
    loading: [{ model: "m", share: 0.5 }],
    requests: [
      { id: "resp_1-0", phase: "reading", read: 10, prompt: 40, left_s: 2.5 },
      { id: "resp_2-0", phase: "waiting", read: 0, prompt: 40, left_s: null },
    ],
  };
  assert.deepEqual(stageOf({ model: "m" }, live), { stage: "loading", share: 0.5, left: null });
  assert.equal(stageOf({ model: "n" }, live), null);
  assert.deepEqual(stageOf({ response: "resp_1" }, live), { stage: "reading", share: 0.25, left: 2.5 });
  assert.deepEqual(stageOf({ response: "resp_2" }, live), { stage: "waiting", share: null, left: null });
  assert.equal(stageOf({ response: "resp_3" }, live), null);
  assert.equal(stageOf({ response: "resp_1" }, null), null);
});

test("an answer that was cut, stopped, lost or edited goes on from its text", () => {
  const cut = newAnswer({ text: "one two \n", drafted: [[0, 3], [6, 9]], status: "done", cut: true });
  assert.deepEqual(begun(cut).text, "one two");
  assert.deepEqual(begun(cut).drafted, [[0, 3], [6, 7]]);
  const states = ["stopped", "lost", "failed", "running", "done"];
  const continuable = states.map((status) => isContinuable({ status, text: "one" }));
  assert.deepEqual(continuable, [true, true, true, false, false]);
  assert.ok(isContinuable(cut));
  assert.ok(isContinuable({ status: "done", text: "one", edited: true }));
  assert.ok(!isContinuable({ status: "stopped", text: " " }));
  const answer = newAnswer({ ...begun(cut), created: 0 });
  apply(answer, { ...events[2], sequence_number: 0 }, 5);
  assert.equal(answer.text, "one two1, ");
});
