import { readFile } from 'node:fs/promises';
import Type, { type TSchema } from 'typebox';
import { compile } from '../../../shared/validate.ts';
import { parseJson } from '../../../shared/json.ts';

/** A rule of an OCI runtime specification's `linux.seccomp` (config-linux.md, "Seccomp"). */
export interface SeccompRule {
  readonly names: string[];
  readonly action: string;
  readonly errnoRet?: number;
  readonly args?: { index: number; value: number; valueTwo: number; op: string }[];
}

export interface SeccompProfile {
  readonly defaultAction: string;
  readonly defaultErrnoRet: number;
  readonly architectures: string[];
  readonly syscalls: SeccompRule[];
}

const Conditions = Type.Object({
  arches: Type.Optional(Type.Array(Type.String())),
  caps: Type.Optional(Type.Array(Type.String())),
});

const Nullable = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()]);

/** containers-common's seccomp.json: OCI rules with conditions on architecture and capabilities. */
const SourceProfile = Type.Object({
  defaultAction: Type.String(),
  defaultErrnoRet: Type.Integer(),
  syscalls: Type.Array(
    Type.Object({
      names: Type.Array(Type.String()),
      action: Type.String(),
      errnoRet: Type.Optional(Type.Integer()),
      args: Type.Optional(
        Nullable(
          Type.Array(
            Type.Object({
              index: Type.Integer(),
              value: Type.Integer(),
              valueTwo: Type.Integer(),
              op: Type.String(),
            }),
          ),
        ),
      ),
      includes: Type.Optional(Conditions),
      excludes: Type.Optional(Conditions),
    }),
  ),
});
type SourceProfile = Type.Static<typeof SourceProfile>;

const checkSource = compile(SourceProfile);

const ARCHITECTURES: Partial<Record<NodeJS.Architecture, { oci: string; names: string[] }>> = {
  x64: { oci: 'SCMP_ARCH_X86_64', names: ['amd64'] },
  arm64: { oci: 'SCMP_ARCH_AARCH64', names: ['arm64'] },
};

// The source profile allows these for nested containers, which commands here do not need: each
// opens a large part of the kernel to whoever creates a user namespace. io_uring and the key ring
// have a history of escapes.
const WITHDRAWN = new Set([
  ...['mount', 'umount', 'umount2', 'mount_setattr', 'move_mount', 'open_tree', 'pivot_root'],
  ...['fsconfig', 'fsmount', 'fsopen', 'fspick', 'name_to_handle_at', 'open_by_handle_at'],
  ...['unshare', 'setns', 'clone', 'clone3', 'keyctl', 'add_key', 'request_key'],
  ...['io_uring_setup', 'io_uring_enter', 'io_uring_register', 'userfaultfd', 'bpf'],
  ...['perf_event_open', 'vmsplice', 'syslog'],
  // All users of the host share a fixed number of these (fs.aio-max-nr); programs work without
  // them.
  'io_setup',
  // socketcall hides its arguments behind a pointer; C libraries have not used it since 2015.
  ...['socket', 'socketpair', 'socketcall', 'fcntl'],
]);

// CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET, from linux/sched.h
const NAMESPACE_FLAGS = 0x7e02_0000;

// clone3 hides its flags behind a pointer, so it answers ENOSYS (the default) and C libraries fall
// back to clone, whose flags can be checked.
const CLONE_WITHOUT_NAMESPACES: SeccompRule = {
  names: ['clone'],
  action: 'SCMP_ACT_ALLOW',
  args: [{ index: 0, value: NAMESPACE_FLAGS, valueTwo: 0, op: 'SCMP_CMP_MASKED_EQ' }],
};

// From linux/socket.h, linux/in.h, and linux/netlink.h.
const AF_UNIX = 1;
const AF_INET = 2;
const AF_INET6 = 10;
const AF_NETLINK = 16;
const INTERNET_PROTOCOLS = [0, 6, 17]; // the type's own, TCP, UDP
const NETLINK_ROUTE = 0;

// Sockets that the container's network namespace confines, by list: every other family and protocol
// is attack surface, reaches the hypervisor (AF_VSOCK), or reveals the host (uevents, audit). The
// kernel uses only the lower half of an argument, so comparing the whole one also requires a zero
// upper half.
const SOCKETS: SeccompRule[] = [
  [argument(0, 'SCMP_CMP_EQ', AF_UNIX)],
  ...[AF_INET, AF_INET6].flatMap((family) =>
    INTERNET_PROTOCOLS.map((protocol) => [
      argument(0, 'SCMP_CMP_EQ', family),
      argument(2, 'SCMP_CMP_EQ', protocol),
    ]),
  ),
  [argument(0, 'SCMP_CMP_EQ', AF_NETLINK), argument(2, 'SCMP_CMP_EQ', NETLINK_ROUTE)],
].map((args) => ({ names: ['socket'], action: 'SCMP_ACT_ALLOW', args }));

const SOCKET_PAIRS: SeccompRule = {
  names: ['socketpair'],
  action: 'SCMP_ACT_ALLOW',
  args: [argument(0, 'SCMP_CMP_EQ', AF_UNIX)],
};

// fcntl without leases (1024), notifications of a directory (1026), and delegations (1039, 1040):
// until a lease is given back, whoever opens the file waits, even the agent. Each pair is a mask
// and the value that the masked command must have; from linux/fcntl.h.
const FILE_CONTROLS: SeccompRule[] = [
  [0xffff_ffc0, 0], // 0 to 63: descriptors, flags, locks
  [0xffff_ffff, 1025], // F_GETLEASE
  [0xffff_ffff, 1027], // F_DUPFD_QUERY
  [0xffff_fffc, 1028], // 1028 to 1031: F_CREATED_QUERY, F_CANCELLK, F_DUPFD_CLOEXEC, F_SETPIPE_SZ
  [0xffff_fffc, 1032], // 1032 to 1035: F_GETPIPE_SZ, seals, F_GET_RW_HINT
  [0xffff_fffe, 1036], // 1036 and 1037: F_SET_RW_HINT, F_GET_FILE_RW_HINT
  [0xffff_ffff, 1038], // F_SET_FILE_RW_HINT
].map(([mask = 0, command = 0]) => ({
  names: ['fcntl'],
  action: 'SCMP_ACT_ALLOW',
  args: [{ index: 1, value: mask, valueTwo: command, op: 'SCMP_CMP_MASKED_EQ' }],
}));

function argument(index: number, op: string, value: number) {
  return { index, op, value, valueTwo: 0 };
}

/** Resolves the conditions of the source profile for one architecture and capability set. */
export function resolveSeccomp(
  source: SourceProfile,
  architecture: NodeJS.Architecture,
  capabilities: readonly string[],
): SeccompProfile {
  const own = ARCHITECTURES[architecture];
  if (own === undefined) throw new Error(`no seccomp profile for ${architecture}`);
  const applies = (rule: SourceProfile['syscalls'][number]): boolean => {
    const { arches = [], caps = [] } = rule.includes ?? {};
    const excluded = rule.excludes?.caps ?? [];
    return (
      (arches.length === 0 || arches.some((name) => own.names.includes(name))) &&
      caps.every((name) => capabilities.includes(name)) &&
      !excluded.some((name) => capabilities.includes(name))
    );
  };
  const rules = source.syscalls.filter(applies).map(({ names, action, errnoRet, args }) => ({
    names: names.filter((name) => !WITHDRAWN.has(name)),
    action,
    ...(errnoRet === undefined ? {} : { errnoRet }),
    ...(args == null || args.length === 0 ? {} : { args }),
  }));
  return {
    defaultAction: source.defaultAction,
    defaultErrnoRet: source.defaultErrnoRet,
    // Subarchitectures are left out: calls by `int 0x80` have other numbers, and some hide their
    // arguments from every rule. A process that makes one is killed.
    architectures: [own.oci],
    syscalls: [
      ...rules.filter((rule) => rule.names.length > 0),
      CLONE_WITHOUT_NAMESPACES,
      ...SOCKETS,
      SOCKET_PAIRS,
      ...FILE_CONTROLS,
    ],
  };
}

/** @throws Error when the file is missing or is not an OCI seccomp profile */
export async function readSeccomp(
  path: string,
  capabilities: readonly string[],
): Promise<SeccompProfile> {
  const source = checkSource(parseJson(await readFile(path, 'utf8')), path);
  return resolveSeccomp(source, process.arch, capabilities);
}
