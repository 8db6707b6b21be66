import Type from 'typebox';
import { Value } from 'typebox/value';

const WIDTH = 1200;
const ROW = 18;
const HEADER = 44;
const CHARACTER = 6.3;
/** Narrower frames are left out, with all that they called. */
const MIN_SHARE = 0.002;

/**
 * A profile as V8 writes it:
 * https://chromedevtools.github.io/devtools-protocol/tot/Profiler/#type-Profile
 */
const Profile = Type.Object({
  nodes: Type.Array(
    Type.Object({
      id: Type.Integer(),
      callFrame: Type.Object({ functionName: Type.String(), url: Type.String() }),
      children: Type.Optional(Type.Array(Type.Integer())),
    }),
  ),
  startTime: Type.Number(),
  samples: Type.Array(Type.Integer()),
  timeDeltas: Type.Array(Type.Number()),
});

/** A period on the monotonic clock, in microseconds. */
export interface Period {
  readonly from: number;
  readonly to: number;
}

/** A function, and the functions that it called. */
export interface Frame {
  readonly name: string;
  readonly kind: Kind;
  /** Time in it and in what it called, in microseconds. */
  micros: number;
  readonly calls: Map<string, Frame>;
}

type Kind = keyof typeof kinds;

/** The owners of the code that frames run, as the legend names them. */
const kinds = {
  berth: { label: 'Berth', colour: '#f4a259' },
  packages: { label: 'packages', colour: '#8cb4d9' },
  node: { label: 'Node', colour: '#9ccc9c' },
  engine: { label: 'V8, native code', colour: '#c8c8c8' },
} as const;

/** The function that V8 names while the thread waits. */
const IDLE = '(idle)';

/**
 * Adds up the samples of a profile that were taken in a period.
 *
 * @param text a `.cpuprofile`, as `node --cpu-prof` writes it
 * @param root directory of the sources, whose name is left out of the graph
 */
export function readProfile(text: string, root: string, period: Period): Frame {
  const { nodes, samples, timeDeltas, startTime } = Value.Parse(Profile, JSON.parse(text));
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const parents = new Map(
    nodes.flatMap(({ id, children = [] }) => children.map((child) => [child, id] as const)),
  );
  const all: Frame = { name: 'all', kind: 'engine', micros: 0, calls: new Map() };
  let at = startTime;
  for (const [i, sample] of samples.entries()) {
    const micros = timeDeltas[i] ?? 0;
    at += micros;
    if (at < period.from || at > period.to) continue;
    const stack: Frame[] = [];
    for (let id: number | undefined = sample; id !== undefined; id = parents.get(id)) {
      const node = byId.get(id);
      if (node !== undefined && parents.has(id)) stack.unshift(frameOf(node.callFrame, root));
    }
    if (stack[0]?.name === IDLE) continue;
    add(all, stack, micros);
  }
  return all;
}

function add(all: Frame, stack: readonly Frame[], micros: number): void {
  let frame = all;
  frame.micros += micros;
  for (const called of stack) {
    const known = frame.calls.get(called.name) ?? called;
    frame.calls.set(called.name, known);
    known.micros += micros;
    frame = known;
  }
}

function frameOf(
  { functionName, url }: { functionName: string; url: string },
  root: string,
): Frame {
  const path = url.replace(/^file:\/\//, '').replace(`${root}/`, '');
  const packageName = /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1];
  const kind = kindOf(path, packageName);
  const name = functionName || '(anonymous)';
  const frame = { micros: 0, calls: new Map<string, Frame>(), kind };
  return { ...frame, name: path === '' ? name : `${name} — ${packageName ?? path}` };
}

function kindOf(path: string, packageName: string | undefined): Kind {
  if (path === '') return 'engine';
  if (packageName !== undefined) return 'packages';
  return path.startsWith('node:') ? 'node' : 'berth';
}

const escape = (text: string): string =>
  text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

/**
 * Draws a flame graph, callers above what they call; the width of a frame is its share of the time.
 *
 * @returns an SVG, which shows names and figures of the frames that the pointer is on
 */
export function drawFlameGraph(all: Frame, title: string): string {
  const boxes: string[] = [];
  let depth = 0;
  const draw = (frame: Frame, x: number, level: number): void => {
    depth = Math.max(depth, level);
    boxes.push(drawFrame(frame, all.micros, x, level));
    let left = x;
    for (const called of [...frame.calls.values()].toSorted((a, b) => b.micros - a.micros)) {
      if (called.micros < all.micros * MIN_SHARE) break;
      draw(called, left, level + 1);
      left += (called.micros / all.micros) * WIDTH;
    }
  };
  draw(all, 0, 0);
  const height = HEADER + (depth + 1) * ROW + 4;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" font-family="monospace" font-size="10.5">`,
    `<rect width="${WIDTH}" height="${height}" fill="white"/>`,
    `<text x="4" y="16" font-size="13">${escape(title)}</text>`,
    ...drawLegend(),
    ...boxes,
    '</svg>\n',
  ].join('\n');
}

function drawLegend(): string[] {
  return Object.values(kinds).map(({ label, colour }, i) => {
    const x = 4 + i * 130;
    return `<rect x="${x}" y="24" width="12" height="12" fill="${colour}"/><text x="${x + 17}" y="34">${escape(label)}</text>`;
  });
}

function drawFrame(frame: Frame, allMicros: number, x: number, level: number): string {
  const share = frame.micros / allMicros;
  const width = share * WIDTH;
  const y = HEADER + level * ROW;
  const letters = Math.floor((width - 4) / CHARACTER);
  const label = letters < 3 ? '' : frame.name.slice(0, letters);
  const figures = `${(share * 100).toFixed(1)} %, ${(frame.micros / 1000).toFixed(0)} ms`;
  return [
    `<g><title>${escape(frame.name)}: ${figures}</title>`,
    `<rect x="${x.toFixed(1)}" y="${y}" width="${width.toFixed(1)}" height="${ROW - 1}" fill="${kinds[frame.kind].colour}"/>`,
    label === '' ? '' : `<text x="${(x + 2).toFixed(1)}" y="${y + 12}">${escape(label)}</text>`,
    '</g>',
  ].join('');
}
