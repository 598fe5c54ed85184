import assert from "node:assert/strict";
import { test } from "node:test";

import { DEFAULTS, drawSeed, requestBody } from "../../../static/js/chat/request.js";

const turns = [
  { role: "user", text: "a", images: [] },
  { role: "assistant", text: "b", reasoning: "why" },
  { role: "user", text: "c", images: [{ id: "i", name: "x.png" }] },
];

test("a conversation becomes the input of a response", () => {
  const images = new Map([["i", "data:image/png;base64,AA"]]);
  const body = requestBody(turns, { ...DEFAULTS, model: "m" }, { seed: 7, images });
  assert.deepEqual(body, {
    model: "m",
    input: [
      { role: "user", content: "a" },
      { type: "reasoning", content: [{ type: "reasoning_text", text: "why" }] },
      { role: "assistant", content: "b" },
      {
        role: "user",
        content: [
          { type: "input_image", image_url: "data:image/png;base64,AA" },
          { type: "input_text", text: "c" },
        ],
      },
    ],
    stream: true,
    background: true,
    seed: 7,
    mark_drafted: true,
  });
});

test("a text goes before the question, as a file", () => {
  const uri = "data:text/plain;base64,aGk=";
  const turn = { role: "user", text: "why?", images: [{ id: "f", name: "a.py", bytes: 2 }] };
  const [{ content }] = requestBody([turn], DEFAULTS, { images: new Map([["f", uri]]) }).input;
  assert.deepEqual(content, [
    { type: "input_file", filename: "a.py", file_data: uri },
    { type: "input_text", text: "why?" },
  ]);
});

test("settings are sent if they are set", () => {
  const settings = {
    ...DEFAULTS,
    system: "Be brief.",
    temperature: "0",
    min_p: "0.05",
    frequency_penalty: "-1",
    maxTokens: "12",
    thinking: "off",
    schema: '{"type": "object"}',
  };
  const body = requestBody(turns.slice(0, 1), settings, { seed: 1, plain: true });
  assert.equal(body.instructions, "Be brief.");
  assert.equal(body.temperature, 0);
  assert.deepEqual([body.min_p, body.frequency_penalty, body.top_k], [0.05, -1, undefined]);
  assert.equal(body.max_output_tokens, 12);
  assert.deepEqual(body.chat_template_kwargs, { enable_thinking: false });
  assert.deepEqual(body.text.format.schema, { type: "object" });
  assert.equal(body.speculation, "off");
});

test("a failed answer without text is left out", () => {
  const failed = { role: "assistant", text: "", reasoning: "" };
  const { input } = requestBody([turns[0], failed, turns[0]], DEFAULTS, { seed: 1 });
  assert.equal(input.length, 2);
});

test("seeds are whole numbers that JavaScript can hold", () => {
  for (let turn = 0; turn < 100; turn++) assert.ok(Number.isSafeInteger(drawSeed()));
});

test("an answer is continued, and a plain one is as long as its original", () => {
  const settings = { ...DEFAULTS, model: "m", maxTokens: "9" };
  const body = requestBody(turns.slice(0, 2), settings, { seed: 1, continues: true });
  assert.equal(body.continue_final_message, true);
  assert.equal(body.input.at(-1).role, "assistant");
  assert.equal(body.max_output_tokens, 9);
  assert.equal(requestBody(turns, settings, { seed: 1, most: 5 }).max_output_tokens, 5);
});
