// What OpenAI's client makes of this server, as JSON for the test: node openai.mjs URL MODEL

import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>';

// So long that it cannot come in one piece.
const long = Array(40).fill("One, two. é日本").join(" ");

async function streamed() {
  const stream = client.chat.completions.stream({
    model,
    messages: [{ role: "user", content: long }],
    stream_options: { include_usage: true },
  });
  const deltas = [];
  stream.on("content", (delta) => deltas.push(delta));
  const text = await stream.finalContent();
  const usage = await stream.totalUsage();
  const whole = text === long && deltas.join("") === long;
  return { whole, several: deltas.length > 1, tokens: usage.completion_tokens };
}

async function toolLoop() {
  const seen = [];
  const runner = client.chat.completions.runTools({
    model,
    stream: true,
    messages: [{ role: "user", content: call }],
    tools: [
      {
        type: "function",
        function: {
          name: "get_weather",
          parameters,
          parse: JSON.parse,
          function: ({ city }) => (seen.push(city), `It rains in ${city}.`),
        },
      },
    ],
  });
  return { said: await runner.finalContent(), seen };
}

async function responses() {
  const events = [];
  const stream = client.responses.stream({
    model,
    input: call,
    tools: [{ type: "function", name: "get_weather", parameters, strict: false }],
  });
  for await (const event of stream) events.push(event.type);
  const first = await stream.finalResponse();
  const [made] = first.output;
  const output = { type: "function_call_output", call_id: made.call_id, output: "It rains." };
  const second = await client.responses.create({ model, previous_response_id: first.id, input: [output] });
  return { arguments: JSON.parse(made.arguments), said: second.output_text, first: events[0], last: events.at(-1) };
}

async function refused() {
  try {
    await client.chat.completions.create({ model: "nobody", messages: [{ role: "user", content: "x" }] });
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, code: error.code };
  }
}

const told = { streamed: await streamed(), tools: await toolLoop(), responses: await responses() };
console.log(JSON.stringify({ ...told, refused: await refused() }));
