import { AppError } from './errors.ts';

/** A reference to an image in a registry, with all that Docker lets callers leave out. */
export interface ImageReference {
  /** `host` or `host:port`; Docker's own is `docker.io`. */
  readonly registry: string;
  /** Within the registry: `library/debian`. */
  readonly repository: string;
  /** Undefined when there is a digest. */
  readonly tag: string | undefined;
  /** `sha256:` and 64 hexadecimal digits. */
  readonly digest: string | undefined;
}

const DOCKER = 'docker.io';
// Parts of the distribution project's reference grammar.
const REGISTRY =
  /^(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))*(?::[0-9]{1,5})?$/u;
const REPOSITORY =
  /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:\/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$/u;
const TAG = /^\w[\w.-]{0,127}$/u;
const DIGEST = /^sha256:[0-9a-f]{64}$/u;
const REPOSITORY_LENGTH_MAX = 255;

/** The first part names a registry when it could not be part of a repository on Docker's own. */
function splitRegistry(name: string): [registry: string, repository: string] {
  const slash = name.indexOf('/');
  const first = slash < 0 ? '' : name.slice(0, slash);
  if (!/[.:]/u.test(first) && first !== 'localhost') return [DOCKER, name];
  return [first === `index.${DOCKER}` ? DOCKER : first, name.slice(slash + 1)];
}

/**
 * Fills in registry, repository and tag of a reference. A tag beside a digest is left out, since
 * the digest alone says which image is meant. The result may be longer than the schemas of requests
 * let the text be, so that no length of it is refused here.
 * @param field of the request that it came in, for the message
 * @throws AppError `bad_request` when it is none
 */
export function parseImageReference(text: string, field?: string): ImageReference {
  const [named = '', digest, ...more] = text.split('@');
  const tagAt = named.lastIndexOf(':');
  const hasTag = tagAt > named.lastIndexOf('/');
  const [registry, short] = splitRegistry(hasTag ? named.slice(0, tagAt) : named);
  const repository = registry === DOCKER && !short.includes('/') ? `library/${short}` : short;
  const tag = hasTag ? named.slice(tagAt + 1) : 'latest';
  const isValid =
    more.length === 0 &&
    REGISTRY.test(registry) &&
    REPOSITORY.test(repository) &&
    repository.length <= REPOSITORY_LENGTH_MAX &&
    TAG.test(tag) &&
    (digest === undefined || DIGEST.test(digest));
  if (!isValid) {
    const shown = `${field === undefined ? '' : `${field}: `}${JSON.stringify(text.slice(0, 100))}`;
    throw new AppError(
      'bad_request',
      `${shown} is not a reference to an image: name:tag, registry/name:tag, or name@sha256:<digest>`,
    );
  }
  return digest === undefined
    ? { registry: registry.toLowerCase(), repository, tag, digest: undefined }
    : { registry: registry.toLowerCase(), repository, tag: undefined, digest };
}

/** `registry/repository`, which a digest or tag completes. */
export const repositoryOf = ({ registry, repository }: ImageReference): string =>
  `${registry}/${repository}`;

/** The one spelling for all that mean the same. */
export const formatImageReference = (reference: ImageReference): string =>
  reference.digest === undefined
    ? `${repositoryOf(reference)}:${reference.tag}`
    : `${repositoryOf(reference)}@${reference.digest}`;
