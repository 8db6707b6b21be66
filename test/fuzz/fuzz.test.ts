/* A short run over every boundary that needs only this process; `npm run fuzz` runs for longer. */
import test from 'ava';
import { keepInput, readCorpus } from './corpus.ts';
import { fuzz } from './engine.ts';
import { inProcessTargets } from './targets.ts';

const SEED = 1;
const EXECUTIONS = 1000;

for (const target of inProcessTargets) {
  test(`the corpus and random mutations pass: ${target.name}`, async (t) => {
    const corpus = await readCorpus(target);
    const executions = corpus.length + (target.executions ?? EXECUTIONS);
    const { failure } = await fuzz(target, { seed: SEED, corpus, executions, isGuided: false });
    const path = failure && (await keepInput(target, 'failure', failure.input));
    t.is(path, undefined, failure?.error.stack);
  });
}
