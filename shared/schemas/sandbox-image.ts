import Type from 'typebox';

const ImagePart = Type.String({ minLength: 1, maxLength: 128, pattern: '^[A-Za-z0-9][\\w.+~-]*$' });

/** The actual image, as `image.json` beside it says (`scripts/build-image`). */
export const SandboxImage = Type.Object({
  /** The distribution's name, such as `debian`. */
  name: ImagePart,
  /** The release's version, such as `12`. */
  version: ImagePart,
  /** The release's code name, such as `bookworm`. */
  codename: Type.Optional(ImagePart),
  /** Tells one build from another. */
  key: ImagePart,
});
export type SandboxImage = Type.Static<typeof SandboxImage>;
