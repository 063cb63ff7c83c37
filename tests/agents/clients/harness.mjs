// What harness.py is to the scripts in Python.
export const QUESTION = "What is the weather in Osaka?";

// `loopsAt` returns the loops at a gateway by their names. A loop takes the list to which its tool adds the cities that
// it is called with, and returns the final answer.
export async function main(loopsAt) {
  for (const url of process.argv.slice(2)) {
    const outcomes = {};
    for (const [name, loop] of Object.entries(loopsAt(url))) outcomes[name] = await outcome(loop);
    console.log(JSON.stringify(outcomes));
  }
}

async function outcome(loop) {
  const cities = [];
  try {
    return { answer: await loop(cities), error: "", cities };
  } catch (error) {
    return { answer: "", error: `${error.name}: ${error.message}`, cities };
  }
}
