import Type from 'typebox';

const ImagePart = Type.String({ minLength: 1, maxLength: 128, pattern: '^[A-Za-z0-9][\\w.+~-]*$' });

/** What an image really is, as `image.json` beside it says (`scripts/build-image`). */
export const SandboxImage = Type.Object({
  /** Of the distribution, such as `debian`. */
  name: ImagePart,
  /** Of the release, such as `12`. */
  version: ImagePart,
  /** Of the release, such as `bookworm`. */
  codename: Type.Optional(ImagePart),
  /** Tells one build from another. */
  key: ImagePart,
});
export type SandboxImage = Type.Static<typeof SandboxImage>;
