import { randomInt } from 'node:crypto';

const adjectives = (
  'amber able bold brave bright brisk calm clear clever cool crisp eager early fair fine fleet ' +
  'fresh gentle glad golden grand green happy honest humble keen kind light lively lucky merry ' +
  'mild neat noble patient plain proud quick quiet ready rosy round sharp shiny silent silver ' +
  'smooth soft solid steady still sunny swift tidy warm wide wise witty young'
).split(' ');
const nouns = (
  'anchor bay beacon birch boat breeze bridge brook buoy canal cape cedar cliff cloud coast cove ' +
  'creek crow current delta dock dove dune eagle elm falcon fern field finch fjord forest gull ' +
  'harbour haven heron hill island jetty keel lagoon lake lantern mast meadow moon oak ocean otter ' +
  'pebble pier pine port quay reef river robin sail sea seal shore spruce star stone stream tide ' +
  'valley wave whale willow wind'
).split(' ');

const oneOf = (words: readonly string[]): string => words[randomInt(words.length)] ?? '';

/** A random name such as `calm-heron-4711`, for a sandbox that was created without a name. */
export const randomName = (): string =>
  `${oneOf(adjectives)}-${oneOf(nouns)}-${randomInt(1000, 10_000)}`;
