import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import { timestamp } from './common.ts';
import { IMAGE_REFERENCE } from './patterns.ts';

// No pattern: text that is no id answers 404, as an id does that nothing has.
export const ImagePath = Type.Object({
  image_id: Type.String({
    description: 'Id of the image: 64 lowercase hexadecimal digits.',
    examples: ['9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'],
  }),
});

const credential = (description: string, example: string) =>
  Type.String({
    minLength: 1,
    maxLength: SCHEMA_LIMITS.imageCredentialLengthMax,
    description,
    examples: [example],
  });

/** Body of build-image (docs/images.md). */
export const BuildImage = Type.Object(
  {
    source: Type.String({
      minLength: 1,
      maxLength: SCHEMA_LIMITS.imageReferenceLengthMax,
      documented: { pattern: IMAGE_REFERENCE },
      description: 'Reference to an image in a registry: name, name:tag or name@sha256:….',
      examples: ['debian:12'],
    }),
    registry_auth: Type.Optional(
      Type.Object(
        {
          username: credential('User of the registry.', 'builder'),
          password: credential('Password or token of that user.', 'a-registry-token'),
        },
        {
          description:
            'Credentials for this build alone: they are never stored. The image is private to the account.',
        },
      ),
    ),
  },
  { title: 'BuildImage' },
);
export type BuildImage = Type.Static<typeof BuildImage>;

export const buildSteps = ['waiting', 'resolving', 'pulling', 'unpacking', 'storing'] as const;
export type BuildStep = (typeof buildSteps)[number];

const imageStatuses = ['building', 'ready', 'failed'] as const;
export type ImageStatus = (typeof imageStatuses)[number];

const imageFailures = ['invalid_source', 'interrupted'] as const;
export type ImageFailureReason = (typeof imageFailures)[number];

/** An image as the API shows it (docs/images.md). */
export const Image = Type.Object(
  {
    image_id: Type.String({
      pattern: '^[0-9a-f]{64}$',
      description: 'The same for every build of the same source by the same account.',
      examples: ['9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'],
    }),
    source: Type.String({
      description: 'The reference, with registry, repository and tag filled in.',
      examples: ['docker.io/library/debian:12'],
    }),
    private: Type.Boolean({ description: 'Whether it was built with credentials.' }),
    status: Type.Enum([...imageStatuses], { description: 'What became of the last build.' }),
    digest: Type.Optional(
      Type.String({
        description: 'Of the last successful build.',
        examples: [`sha256:${'0a'.repeat(32)}`],
      }),
    ),
    canonical_source: Type.Optional(
      Type.String({
        description: 'The source pinned to that digest.',
        examples: [`docker.io/library/debian@sha256:${'0a'.repeat(32)}`],
      }),
    ),
    failure_reason: Type.Optional(
      Type.Enum([...imageFailures], {
        description:
          'Of a failed build: `interrupted` may succeed when it is asked for again, `invalid_source` will not.',
      }),
    ),
    failure_message: Type.Optional(
      Type.String({
        description: 'The same in words.',
        examples: ['the registry has no such image: docker.io/library/debian'],
      }),
    ),
    progress: Type.Optional(
      Type.Object(
        {
          step: Type.Enum([...buildSteps], { description: 'What the build is at.' }),
          bytes_done: Type.Integer({ description: 'Bytes of this step.', examples: [1_048_576] }),
          bytes_total: Type.Integer({
            description: 'How many there will be; 0 when that is not known.',
            examples: [4_194_304],
          }),
        },
        { description: 'Of a build under way, once it has begun.' },
      ),
    ),
    created_at: timestamp('When it was first asked for.'),
    updated_at: timestamp('When its status changed last.'),
  },
  { title: 'Image' },
);
export type Image = Type.Static<typeof Image>;
