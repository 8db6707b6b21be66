import test from 'ava';
import { drawFlameGraph, readProfile } from '../../bench/flame-graph.ts';

const frame = (id: number, functionName: string, url: string, children: number[] = []) => ({
  id,
  callFrame: { functionName, url },
  children,
});

/** Four samples of 10 µs: two of `work`, one of a package below it, one of the idle thread. */
const profile = JSON.stringify({
  nodes: [
    frame(1, '(root)', '', [2, 4]),
    frame(2, 'work<T>', 'file:///sources/agent/work.ts', [3]),
    frame(3, '', 'file:///sources/node_modules/@scope/name/index.js'),
    frame(4, '(idle)', ''),
  ],
  startTime: 1000,
  samples: [2, 2, 3, 4],
  timeDeltas: [10, 10, 10, 10],
});

test('a caller has the time of what it called, and idle time counts for nothing', (t) => {
  const all = readProfile(profile, '/sources', { from: 0, to: 2000 });
  t.is(all.micros, 30);
  t.deepEqual([...all.calls.keys()], ['work<T> — agent/work.ts']);
  const work = all.calls.get('work<T> — agent/work.ts');
  t.is(work?.micros, 30);
  t.is(work?.kind, 'berth');
  const called = work?.calls.get('(anonymous) — @scope/name');
  t.is(called?.micros, 10);
  t.is(called?.kind, 'packages');
});

test('samples outside of the period are left out', (t) => {
  t.is(readProfile(profile, '/sources', { from: 1015, to: 1025 }).micros, 10);
});

test('names are escaped in the drawing', (t) => {
  const all = readProfile(profile, '/sources', { from: 0, to: 2000 });
  const svg = drawFlameGraph(all, 'a & b');
  t.true(svg.includes('work&#60;T&#62; — agent/work.ts: 100.0 %'));
  t.true(svg.includes('a &#38; b'));
  t.false(/[<]T[>]/.test(svg));
});

test('what is not a profile is refused', (t) => {
  t.throws(() => readProfile('{"nodes":[]}', '/sources', { from: 0, to: 1 }));
});
