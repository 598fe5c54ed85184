// What Ollama's client makes of this server, as JSON for the test: node ollama.mjs URL MODEL

import { Ollama } from "ollama";

const [url, model] = process.argv.slice(2);
const client = new Ollama({ host: url });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>';

// So long that it cannot come in one piece.
const long = Array(40).fill("One, two. é日本").join(" ");

async function streamed() {
  const parts = [];
  for await (const part of await client.chat({
    model,
    messages: [{ role: "user", content: long }],
    think: false,
    stream: true,
  })) {
    parts.push(part);
  }
  const whole = parts.map((part) => part.message.content).join("") === long;
  const last = parts.at(-1);
  return { whole, several: parts.length > 2, done: last.done_reason, tokens: last.eval_count };
}

async function toolLoop() {
  const messages = [{ role: "user", content: call }];
  const first = await client.chat({ model, messages, tools, think: false });
  const [{ function: called }] = first.message.tool_calls;
  messages.push(first.message, { role: "tool", tool_name: called.name, content: "It rains." });
  const second = await client.chat({ model, messages, tools, think: false });
  return { arguments: called.arguments, said: second.message.content };
}

async function thinking() {
  const prompt = "<think>\nHm.\n</think>\n\nYes.";
  const { response, thinking } = await client.generate({ model, prompt, think: true });
  return { response, thinking: thinking.trim() };
}

async function models() {
  const { models } = await client.list();
  const { capabilities, model_info: info } = await client.show({ model: models[0].model });
  const context = info[`${info["general.architecture"]}.context_length`];
  const running = await client.ps();
  const names = running.models.map((each) => each.name);
  return { first: models[0].model, tools: capabilities.includes("tools"), context, running: names };
}

async function refused() {
  try {
    await client.chat({ model: "nobody", messages: [{ role: "user", content: "x" }] });
  } catch (error) {
    return { kind: error.name, status: error.status_code, named: error.message.includes("nobody") };
  }
}

const told = { streamed: await streamed(), tools: await toolLoop(), thinking: await thinking() };
console.log(JSON.stringify({ ...told, models: await models(), refused: await refused() }));
