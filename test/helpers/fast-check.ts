/*
 * fast-check as tests use it. Usual runs draw the same values each time, so that a run tells about
 * the change and not about its luck; runs at full length draw new values and look for more.
 */
import { configureGlobal } from 'fast-check';
import { isFull } from './full.ts';

if (!isFull) configureGlobal({ seed: 1 });

export * from 'fast-check';
