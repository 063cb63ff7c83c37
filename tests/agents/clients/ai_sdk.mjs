// Vercel's AI SDK over all three APIs: the loops of harness.py, and what it prints of them.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const QUESTION = "What is the weather in Osaka?";
const Trip = z.object({ city: z.string(), days: z.number().int() });
const APIS = {
  responses: (baseURL) => createOpenAI({ baseURL, apiKey: "none" })("m"),
  chat: (baseURL) => createOpenAICompatible({ name: "specgate", baseURL, supportsStructuredOutputs: true })("m"),
  messages: (baseURL) => createAnthropic({ baseURL, apiKey: "none" })("m"),
};

async function loop(model, cities, stream) {
  const weather = tool({
    description: "The weather in a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      cities.push(city);
      return `21 degrees in ${city}`;
    },
  });
  const asked = { model, prompt: QUESTION, tools: { get_weather: weather }, stopWhen: stepCountIs(4), maxRetries: 0 };
  if (!stream) return (await generateText(asked)).text;
  let failed;
  const result = streamText({ ...asked, onError: ({ error }) => (failed = error) });
  let text = "";
  for await (const piece of result.textStream) text += piece;
  if (failed) throw failed;
  return text;
}

async function document(model) {
  return JSON.stringify((await generateObject({ model, schema: Trip, prompt: "Plan a trip.", maxRetries: 0 })).object);
}

async function outcome(run) {
  const cities = [];
  try {
    return { answer: await run(cities), error: "", cities };
  } catch (error) {
    return { answer: "", error: `${error.name}: ${error.message}`, cities };
  }
}

for (const url of process.argv.slice(2)) {
  const outcomes = {};
  for (const [api, model] of Object.entries(APIS)) {
    const made = model(`${url}/v1`);
    outcomes[`${api} whole`] = await outcome((cities) => loop(made, cities, false));
    outcomes[`${api} streamed`] = await outcome((cities) => loop(made, cities, true));
    outcomes[`${api} document`] = await outcome(() => document(made));
  }
  console.log(JSON.stringify(outcomes));
}
