#!/usr/bin/env node
// Plain JavaScript, so that an old Node can still say what it needs.
import { existsSync } from 'node:fs';
import module from 'node:module';
import { homedir } from 'node:os';
import { join } from 'node:path';

const [major, minor] = process.versions.node.split('.').map(Number);
const main = new URL('../dist/main.js', import.meta.url);

if (major < 22 || (major === 22 && minor < 12)) {
  console.error(`berth: Node ${process.version} is too old: install Node 22.12 or newer.`);
  process.exitCode = 1;
} else if (!existsSync(main)) {
  console.error('berth: this checkout is not set up: run ./scripts/setup or ./scripts/up first.');
  process.exitCode = 1;
} else {
  // A directory of the user's own: in a shared one another user could leave code for us.
  module.enableCompileCache(join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'berth'));
  await import(main.href);
}
