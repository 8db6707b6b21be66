/* A browser plays a shared recording and seeks in it: share links serve media elements. */
import test from 'ava';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import { openPage } from '../helpers/browser.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { share } from '../helpers/shares.ts';
import { Stack } from '../helpers/stack.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

const SAMPLE_RATE = 44_100;
const DURATION_S = 200;
const DATA_BYTES = DURATION_S * SAMPLE_RATE * 4; // 35 MB: 16 bits, two channels.
const POSITIONS = [150, 20, 190, 75.5];
const PAGE_TIMEOUT_MS = 60_000;

const page = (
  media: string,
): string => `<!doctype html><audio id="audio" preload="metadata"></audio>
<script type="module">
  const audio = document.getElementById('audio');
  const event = (name) => new Promise((resolve, reject) => {
    audio.addEventListener(name, resolve, { once: true });
    audio.addEventListener('error', () => reject(new Error(audio.error.message)), { once: true });
  });
  const report = (findings) => fetch('/report', { method: 'POST', body: JSON.stringify(findings) });
  try {
    const loaded = event('loadedmetadata');
    audio.src = ${JSON.stringify(media)};
    await loaded;
    const seeks = [];
    for (const to of ${JSON.stringify(POSITIONS)}) {
      const seeked = event('seeked');
      audio.currentTime = to;
      await seeked;
      const playing = event('timeupdate');
      await audio.play();
      await playing;
      audio.pause();
      seeks.push({ to, at: audio.currentTime });
    }
    await report({ duration: audio.duration, seeks });
  } catch (error) {
    await report({ error: String(error) });
  }
</script>`;

interface Findings {
  readonly duration?: number;
  readonly seeks?: readonly { to: number; at: number }[];
  readonly error?: string;
}

/** Serves the page from another origin than the link's and waits for its report. */
async function servePage(media: string): Promise<{ server: Server; findings: Promise<Findings> }> {
  const server = createServer();
  const findings = new Promise<Findings>((resolve, reject) => {
    server.on('request', (request, response) => {
      if (request.method === 'POST')
        json(request).then((body) => resolve(body as Findings), reject);
      response.writeHead(200, { 'content-type': 'text/html; charset=utf-8' });
      response.end(request.url === '/' ? page(media) : '');
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { server, findings };
}

/** A WAV file of silence, most of it a hole. */
const makeRecording = `python3 -c '
import struct
size = ${DATA_BYTES}
head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 2,
  ${SAMPLE_RATE}, ${SAMPLE_RATE} * 4, 4, 16, b"data", size)
with open("recording.wav", "wb") as file:
  file.write(head)
  file.truncate(len(head) + size)
'`;

test('a media element of another page plays a shared file and seeks in it', async (t) => {
  t.timeout(2 * PAGE_TIMEOUT_MS);
  await using directory = await temporaryDirectory();
  const stack = await Stack.start();
  try {
    const api = await stack.newClient();
    const { id } = await createDisk(api);
    t.is((await exec(api, id, makeRecording)).exitCode, 0);
    const { server, findings } = await servePage(await share(api, id, 'recording.wav'));
    const { port } = server.address() as AddressInfo;
    try {
      await using _browser = await openPage(`http://127.0.0.1:${port}/`, directory.path);
      const overdue = AbortSignal.timeout(PAGE_TIMEOUT_MS);
      const { error, duration, seeks } = await Promise.race([
        findings,
        once(overdue, 'abort').then((): Findings => ({ error: 'the page reported nothing' })),
      ]);
      t.is(error, undefined);
      t.is(duration, DURATION_S);
      t.is(seeks?.length, POSITIONS.length);
      for (const { to, at } of seeks ?? []) t.true(at >= to && at < to + 5, `${to}: ${at}`);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  } finally {
    // Stopped before its log is read: everything is written then.
    await stack.control.stop();
    const log = await stack.control.readLog();
    const downloads = log.split('\n').filter((line) => line.includes('/api/shared/{token}'));
    const partial = downloads.filter((line) => line.includes('"status":206'));
    t.log(`${downloads.length} requests, ${partial.length} for a part`);
    t.true(partial.length > 1);
    await stack.stop();
  }
});
