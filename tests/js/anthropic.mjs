// What Anthropic's client makes of this server, as JSON for the test: node anthropic.mjs URL MODEL

import Anthropic from "@anthropic-ai/sdk";

const [url, model] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", input_schema }];
const call = 'Let me see.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>';

// So long that it cannot come in one piece.
const long = Array(40).fill("One, two. é日本").join(" ");

async function streamed() {
  const deltas = [];
  const stream = client.messages
    .stream({ model, max_tokens: 1024, messages: [{ role: "user", content: long }] })
    .on("text", (delta) => deltas.push(delta));
  const message = await stream.finalMessage();
  return {
    whole: (await stream.finalText()) === long && deltas.join("") === long,
    several: deltas.length > 1,
    reason: message.stop_reason,
    tokens: message.usage.output_tokens,
  };
}

async function toolLoop() {
  const messages = [{ role: "user", content: call }];
  const first = await client.messages.stream({ model, max_tokens: 256, tools, messages }).finalMessage();
  const use = first.content.find((block) => block.type === "tool_use");
  const result = { type: "tool_result", tool_use_id: use.id, content: "It rains." };
  messages.push({ role: "assistant", content: first.content }, { role: "user", content: [result] });
  const second = await client.messages.stream({ model, max_tokens: 256, tools, messages }).finalText();
  return { text: first.content[0].text, input: use.input, reason: first.stop_reason, said: second };
}

async function refused() {
  try {
    await client.messages.create({ model: "nobody", max_tokens: 1, messages: [{ role: "user", content: "x" }] });
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, type: error.error.error.type };
  }
}

console.log(JSON.stringify({ streamed: await streamed(), tools: await toolLoop(), refused: await refused() }));
