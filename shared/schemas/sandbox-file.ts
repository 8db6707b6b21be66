import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import { timestamp } from './common.ts';

/*
 * Files of a sandbox, as the API shows them (docs/files.md). A path is bytes. In a query it is
 * percent-encoded, whatever its bytes; in JSON it is text, and one that is not UTF-8 is told
 * percent-encoded in a second field.
 */

const ABSOLUTE = '^/[^\\u0000]*$';
const path = (description: string) =>
  Type.String({
    maxLength: SCHEMA_LIMITS.filePathBytesMax,
    pattern: ABSOLUTE,
    description,
    examples: ['/home/user/notes.txt'],
  });
const ENCODED = `^/(?:[!-$&-~]|%(?!00)[0-9A-Fa-f]{2}){0,${SCHEMA_LIMITS.filePathBytesMax - 1}}$`;

/** The parameters for one of a path's two forms. */
const eitherFormOf = (name: string) => ({
  oneOf: [{ required: [name] }, { required: [`${name}_encoded`] }],
});
const encodedPath = (description: string) =>
  Type.String({
    maxLength: 3 * SCHEMA_LIMITS.filePathBytesMax,
    pattern: ENCODED,
    description,
    examples: ['/data/caf%E9.txt'],
  });

const QUERY_PATH = path(
  'Absolute path in the sandbox: any bytes but NUL, percent-encoded, at most ' +
    `${SCHEMA_LIMITS.filePathBytesMax}.`,
);

const follow = Type.Optional(
  Type.Boolean({
    default: true,
    description: 'Whether a link at the end of the path stands for what it leads to.',
  }),
);
const mode = (fallback: string) =>
  Type.Optional(
    Type.String({
      pattern: '^0?[0-7]{3,4}$',
      description: `Permissions, in octal. Of a new one ${fallback} when omitted; else they stay.`,
      examples: ['0644'],
    }),
  );
const OWNER = { minimum: 0, maximum: 4_294_967_294 } as const;
const owner = (of: string) =>
  Type.Optional(
    Type.Integer({
      ...OWNER,
      description: `Number of the ${of}. Of a new one that of the sandbox's default user; else it stays.`,
      examples: [1000],
    }),
  );
const parents = Type.Optional(
  Type.Boolean({
    default: false,
    description: 'Make the directories above it that are missing, with mode 0755 and its owner.',
  }),
);

export const FileQuery = Type.Object({ path: QUERY_PATH, follow });

export const WriteFileQuery = Type.Object({
  path: QUERY_PATH,
  mode: mode('0644'),
  uid: owner('user'),
  gid: owner('group'),
  parents,
  follow,
  sync: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Answer when file and directory are on the disk, and survive a crash.',
    }),
  ),
});
export type WriteFileQuery = Type.Static<typeof WriteFileQuery>;

export const RemoveFileQuery = Type.Object({
  path: QUERY_PATH,
  recursive: Type.Optional(
    Type.Boolean({ default: false, description: 'A directory goes with all that is in it.' }),
  ),
});

const recursive = Type.Optional(
  Type.Boolean({ default: false, description: 'Also what is in the directories below it.' }),
);

export const ListFilesQuery = Type.Object({
  path: QUERY_PATH,
  follow,
  recursive,
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: Number.MAX_SAFE_INTEGER,
      default: SCHEMA_LIMITS.fileListDefault,
      description:
        `How many entries a page has at most; what is above ${SCHEMA_LIMITS.fileListMax} counts as that. ` +
        'A page may have fewer.',
    }),
  ),
  cursor: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: SCHEMA_LIMITS.fileCursorLengthMax,
      description: 'The `nextCursor` of the page before; left out for the first page.',
      examples: ['bm90ZXMudHh0'],
    }),
  ),
});
export type ListFilesQuery = Type.Static<typeof ListFilesQuery>;

export const WatchFilesQuery = Type.Object({ path: QUERY_PATH, follow, recursive });

/** Either the text or the percent-encoded form of a path. */
export const MoveFile = Type.Object(
  {
    from: Type.Optional(path('Absolute path of what is moved.')),
    from_encoded: Type.Optional(
      encodedPath('The same, percent-encoded: for paths that are not UTF-8. One of the two.'),
    ),
    to: Type.Optional(path('Absolute path that it gets.')),
    to_encoded: Type.Optional(encodedPath('The same, percent-encoded. One of the two.')),
    overwrite: Type.Optional(
      Type.Boolean({
        default: false,
        description: 'Replace what is there, in one step; a directory only if it is empty.',
      }),
    ),
  },
  { title: 'MoveFile', documented: { allOf: [eitherFormOf('from'), eitherFormOf('to')] } },
);
export type MoveFile = Type.Static<typeof MoveFile>;

export const CreateDirectory = Type.Object(
  {
    path: Type.Optional(path('Absolute path of the directory.')),
    path_encoded: Type.Optional(
      encodedPath('The same, percent-encoded: for paths that are not UTF-8. One of the two.'),
    ),
    mode: mode('0755'),
    uid: owner('user'),
    gid: owner('group'),
    parents,
  },
  { title: 'CreateDirectory', documented: { allOf: [eitherFormOf('path')] } },
);
export type CreateDirectory = Type.Static<typeof CreateDirectory>;

const fileTypes = [
  'file',
  'directory',
  'link',
  'fifo',
  'socket',
  'block_device',
  'character_device',
] as const;

export const SandboxFile = Type.Object(
  {
    path: Type.String({
      description: 'Absolute path; bytes that are not UTF-8 show as U+FFFD.',
      examples: ['/home/user/notes.txt'],
    }),
    path_encoded: Type.Optional(
      Type.String({
        description: 'The path percent-encoded, when it is not UTF-8.',
        examples: ['/data/caf%E9.txt'],
      }),
    ),
    type: Type.Enum(fileTypes, { description: 'What it is.' }),
    size: Type.Integer({ minimum: 0, description: 'In bytes.', examples: [1024] }),
    mode: Type.String({
      pattern: '^[0-7]{4}$',
      description: 'Permissions, in octal.',
      examples: ['0644'],
    }),
    uid: Type.Integer({ ...OWNER, description: 'Number of its user.', examples: [1000] }),
    gid: Type.Integer({ ...OWNER, description: 'Number of its group.', examples: [1000] }),
    modified_at: timestamp('When its content was last changed, by the clock of the sandbox.'),
    etag: Type.Optional(
      Type.String({
        description: 'Of a file: changes with its content. As in the header `ETag`.',
        examples: ['"5f3a9c"'],
      }),
    ),
    target: Type.Optional(
      Type.String({ description: 'Of a link: where it leads.', examples: ['../notes.txt'] }),
    ),
  },
  { title: 'SandboxFile' },
);
export type SandboxFile = Type.Static<typeof SandboxFile>;

export const SandboxFileList = Type.Object(
  { entries: Type.Array(SandboxFile, { description: 'In the order of their bytes.' }) },
  { title: 'SandboxFileList' },
);
